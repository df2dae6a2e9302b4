"""Translation, which `plmu train iwslt` and `plmu translate` share.

`models`: encoder–decoders and their options · `task`: pairs of sentences as batches, loss and score · `decoding`: beam
search · `bleu`: the score · `translator`: raw sentences through a trained model.
"""

"""Text as token numbers, and back. Experiments and runs share this room.

`words`: tokenise, count a vocabulary, and arrays of token numbers · `symbols`: what the numbers of a language model or
classifier stand for · `vocabularies`: the same for translation, with pieces of words · `moses`: sentences as Moses'
tokeniser splits them, and back.
"""

"""Text as token numbers: words, characters, bytes, subwords, and their files."""

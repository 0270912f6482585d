"""A short play for tests."""

PLAY = """A title page, of no speaker.

ANNA:
abab abab
abab

BERT:
ccdd ccdd ccdd ccdd

 ccdd

ANNA:
abab abab!

CLOWN:
ha
"""

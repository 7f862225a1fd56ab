"""Characters that look like ASCII ones, and are neither compatible forms of them nor named after them.

Only what looks the same in common typefaces: letters of a script that merely resemble others would turn its ordinary
words into words of English. Chosen from Unicode's confusables (UTS 39).
"""
# ruff: noqa: RUF001

_BY_SCRIPT = (
    # Cyrillic
    ("АВСЕНІЈКМОРЅТХУԚԜҮѴԌԀӀ", "ABCEHIJKMOPSTXYQWYVGDI"),
    ("асеһіјкорѕхуԛԝүѵԁӏ", "acehijkopsxyqwyvdl"),
    # Greek
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹ", "ABEZHIKMNOPTYXC"),
    ("αγεηικνορτυχωϲϳ", "ayenikvoptuxwcj"),
    # Armenian
    ("հոօսցզյԼՏՕՍ", "hnouqgjLSOU"),
    # Cherokee
    ("ᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷᏢᏒᏚᎢᏙᏔᏃᎩᎳ", "ABCDEGHiJKLMPRSTVWZYW"),
    # Latin letters whose names do not say it, and what stands for letters
    ("ıɩɑɡƅꞵſǀ∣Ɩ", "iiagbbslll"),
    # minus signs that are no dash punctuation
    ("−⁃˗", "---"),
    # quotation marks
    ("‘’‚‛ʼʹ′", "'" * 7),
    ("“”„‟″", '"' * 5),
)
LOOK_ALIKES = {ord(odd): plain for odds, plains in _BY_SCRIPT for odd, plain in zip(odds, plains, strict=True)}
"""By code point."""
SEVERAL = {"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"}
"""Letters that are written as two."""

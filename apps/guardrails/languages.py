"""The languages that a rule can allow: what the guard's judge of languages tells apart, by their ISO 639-1 codes."""

_CODES = """
af am an ar as az ba be bg bn br bs ca cs cy da de dz el en eo es et eu fa fi fo fr fy ga gd gl gu ha he hi hr ht hu hy
id ig is it ja jv ka kk km kn ko ku ky la lb lg ln lo lt lv mg mk ml mn mr ms mt my nb ne nl nn no oc om or pa pl ps pt
qu ro ru rw sa se si sk sl sn so sq sr st sv sw ta te tg th tk tl tr tt ug uk ur uz vi vo wa xh yo zh zu
"""

LANGUAGES = frozenset(_CODES.split())
"""Kept here, since the judge's model is not loaded into gateways; a test holds them together."""

"""An embedded parallel corpus: phrases that Babel renders in two locales from Unicode's CLDR. It needs no network.

    parts('en', 'fr')['train'][0]  ->  ('Monday, March 7, 2011', 'lundi 7 mars 2011')

Dates, times, numbers, prices, measures, and the names of countries and languages, alone and in lists. The same version of
Babel gives the same phrases; every phrase has one translation, and the parts share neither sources nor targets.
"""

import collections
import datetime
import difflib
import hashlib
import random
from collections.abc import Callable, Sequence

import babel
from babel import dates, lists, localedata, numbers, units

Pair = tuple[str, str]
Phrase = Callable[[babel.Locale], Sequence[str | None]]  # one thing in the styles of a locale

_HELD_OUT = 1000  # phrases for validation, and as many for testing
_START, _DAYS = datetime.date(1950, 1, 1), 36525  # a century, so that two digits name a year
_NO_COUNTRIES = {'XA', 'XB', 'ZZ'}  # pseudo-locales, unknown
_CURRENCIES = ['USD', 'EUR', 'GBP', 'JPY', 'CHF', 'CAD', 'AUD', 'CNY', 'INR', 'BRL', 'MXN', 'SEK', 'NOK', 'PLN', 'KRW', 'ZAR']
_UNITS = [
    f'{quantity}-{unit}'
    for quantity, names in {
        'length': 'millimeter centimeter meter kilometer inch foot mile',
        'area': 'square-meter square-kilometer hectare',
        'volume': 'milliliter liter cubic-meter',
        'mass': 'gram kilogram tonne ounce pound',
        'duration': 'second minute hour day week month year',
        'speed': 'meter-per-second kilometer-per-hour mile-per-hour',
        'temperature': 'celsius fahrenheit',
        'digital': 'megabyte gigabyte',
    }.items()
    for unit in names.split()
]


def version() -> str:
    """The version of Babel, on which the phrases depend."""
    return babel.__version__


def parts(source: str, target: str, count: int = 40_000, seed: int = 0) -> dict[str, list[Pair]]:
    """{'train', 'valid' and 'test': pairs (source phrase, target phrase)} as CLDR writes them, special spaces included.

    Every name alone and 1, 2 and 5 of every unit are in 'train', so the held-out phrases consist of words seen in training.

    Args:
      source, target: locales such as 'en', 'de_CH' or 'zh_Hant'.
      count: phrases to draw for all parts together; repeated and ambiguous ones are then removed.
      seed: of the draws.
    Raises: ValueError for a locale that CLDR does not have.
    """
    locales = locale(source), locale(target)
    rng, names = random.Random(seed), _Names(locales)
    drawn = [
        rng.choice(found)
        for share, draw in _kinds(names)
        for _ in range(round(count * share))
        if (found := _translated(locales, draw(rng)))
    ]
    words = [pair for phrase in names.alone() + _counted() for pair in _translated(locales, phrase)]
    translations = collections.defaultdict(set)
    for phrase, translation in drawn + words:
        translations[phrase].add(translation)
    certain = {(phrase, *found) for phrase, found in translations.items() if len(found) == 1}
    seen = {text for pair in words for text in pair}
    ranked = sorted((pair for pair in certain if seen.isdisjoint(pair)), key=_rank)
    held = min(_HELD_OUT, len(ranked) // 10)
    test, rest = ranked[:held], _without(ranked[held:], ranked[:held])
    valid, rest = rest[:held], _without(rest[held:], rest[:held])
    return {'train': sorted(certain.intersection(words)) + rest, 'valid': valid, 'test': test}


def locale(name: str) -> babel.Locale:
    """The locale of this name; ValueError, with the names close to it, if CLDR has none."""
    try:
        return babel.Locale.parse(name)
    except (babel.UnknownLocaleError, ValueError) as error:
        close = difflib.get_close_matches(name, localedata.locale_identifiers(), 3, 0.5)
        hint = f'did you mean {" or ".join(map(repr, close))}?' if close else "write one such as 'en', 'fr' or 'de_CH'."
        raise ValueError(f'CLDR has no locale {name!r}; {hint}') from error


def _translated(locales: tuple[babel.Locale, babel.Locale], phrase: Phrase) -> list[Pair]:
    """The pairs of a phrase, one for each distinct source text; if two styles give the same source text, the translation
    of the first is kept. Empty if a locale lacks a word of the phrase."""
    found: dict[str, str] = {}
    for original, translation in zip(*map(phrase, locales), strict=True):
        if not original or not translation:
            return []
        found.setdefault(original, translation)
    return list(found.items())


def _rank(pair: Pair) -> tuple[bytes, Pair]:
    """The sort key of a random order that keeps all pairs with one target together."""
    return hashlib.sha256(pair[1].encode()).digest(), pair


def _without(pairs: list[Pair], held: list[Pair]) -> list[Pair]:
    targets = {target for _, target in held}
    return [pair for pair in pairs if pair[1] not in targets]


def _kinds(names: '_Names') -> list[tuple[float, Callable[[random.Random], Phrase]]]:
    """(share of all phrases, function that draws one)."""
    return [
        (0.28, _date),
        (0.08, _month),
        (0.06, _time),
        (0.10, _date_and_time),
        (0.14, _number),
        (0.12, _price),
        (0.12, _measure),
        *names.kinds(),
    ]


def _date(rng: random.Random) -> Phrase:
    day = _day(rng)
    return lambda locale: [dates.format_date(day, style, locale) for style in ('full', 'long', 'medium', 'short')]


def _month(rng: random.Random) -> Phrase:
    """A month with its day, or with its year."""
    day, styles = _day(rng), rng.choice([('MMMMd', 'MMMd'), ('yMMMM', 'yMMM')])
    return lambda locale: [dates.format_skeleton(style, day, locale=locale) for style in styles]


def _time(rng: random.Random) -> Phrase:
    time = _clock(rng)
    return lambda locale: [dates.format_time(time, style, locale=locale) for style in ('short', 'medium')]


def _date_and_time(rng: random.Random) -> Phrase:
    moment = datetime.datetime.combine(_day(rng), _clock(rng))
    return lambda locale: [dates.format_datetime(moment, style, locale=locale) for style in ('medium', 'short')]


def _number(rng: random.Random) -> Phrase:
    """A whole number or one with two decimals, a percentage, or a number such as 1.2 million."""
    value, share, large = _amount(rng), rng.randrange(1000) / 1000, rng.randrange(10, 1000) * 10 ** rng.randint(2, 8)

    def compact(locale: babel.Locale) -> list[str | None]:
        if 'long' not in locale.compact_decimal_formats:
            return [None]
        return [numbers.format_compact_decimal(large, format_type='long', locale=locale, fraction_digits=1)]

    return rng.choice([
        lambda locale: [numbers.format_decimal(value, locale=locale)],
        lambda locale: [numbers.format_percent(share, locale=locale, decimal_quantization=False)],
        compact,
    ])


def _price(rng: random.Random) -> Phrase:
    """A price with the currency's sign or its name."""
    amount, currency = _amount(rng), rng.choice(_CURRENCIES)
    return rng.choice([
        lambda locale: [numbers.format_currency(amount, currency, locale=locale)],
        _named_price(amount, currency),
    ])


def _measure(rng: random.Random) -> Phrase:
    value = rng.choice([rng.randrange(1, 100), rng.randrange(100, 2000), rng.randrange(1, 1000) / 10])
    return _measured(value, rng.choice(_UNITS))


def _counted() -> list[Phrase]:
    """1, 2 and 5 of every currency and unit: the forms of their names."""
    return [
        *(_named_price(count, currency) for count in (1, 2, 5) for currency in _CURRENCIES),
        *(_measured(count, unit) for count in (1, 2, 5) for unit in _UNITS),
    ]


def _named_price(amount: float, currency: str) -> Phrase:
    return lambda locale: [numbers.format_currency(amount, currency, locale=locale, format_type='name')]


def _measured(value: float, unit: str) -> Phrase:
    def phrase(locale: babel.Locale) -> list[str | None]:
        text = units.format_unit(value, unit, 'long', locale=locale)
        return [None if unit in text else text]  # Babel's text of a unit that the locale does not name

    return phrase


def _day(rng: random.Random) -> datetime.date:
    return _START + datetime.timedelta(rng.randrange(_DAYS))


def _clock(rng: random.Random) -> datetime.time:
    return datetime.time(rng.randrange(24), rng.randrange(60), rng.randrange(60))


def _amount(rng: random.Random) -> int | float:
    whole = rng.randrange(10 ** rng.randint(1, 6))
    return rng.choice([whole, whole + rng.randrange(100) / 100])


class _Names:
    """The countries and languages that have a unique name in both locales."""

    def __init__(self, locales: tuple[babel.Locale, babel.Locale]):
        identifiers = [name.split('_') for name in sorted(localedata.locale_identifiers())]
        countries = sorted({code for found in locales for code in found.territories if len(code) == 2} - _NO_COUNTRIES)
        self._countries = _named(countries, [found.territories for found in locales])
        self._languages = _named(sorted({name[0] for name in identifiers}), [found.languages for found in locales])
        self._pairs = [
            name for name in identifiers if len(name) == 2 and name[0] in self._languages and name[1] in self._countries
        ]

    def alone(self) -> list[Phrase]:
        """Every name as a phrase."""
        return [
            *(lambda locale, code=code: [locale.territories[code]] for code in self._countries),
            *(lambda locale, code=code: [locale.languages[code]] for code in self._languages),
        ]

    def kinds(self) -> list[tuple[float, Callable[[random.Random], Phrase]]]:
        """The kinds of phrases that list names, as in `_kinds`; left out where the locales have too few names."""
        enough = len(self._countries) >= 4, len(self._languages) >= 3 and self._pairs
        return [kind for kind, okay in zip(((0.06, self.countries), (0.04, self.languages)), enough, strict=True) if okay]

    def countries(self, rng: random.Random) -> Phrase:
        """A list of two to four countries."""
        codes = rng.sample(self._countries, rng.randint(2, 4))
        return lambda locale: [lists.format_list([locale.territories[code] for code in codes], locale=locale)]

    def languages(self, rng: random.Random) -> Phrase:
        """A list of two or three languages, or a language with a country, such as German (Austria)."""
        codes, pair = rng.sample(self._languages, rng.randint(2, 3)), rng.choice(self._pairs)
        return rng.choice([
            lambda locale: [lists.format_list([locale.languages[code] for code in codes], locale=locale)],
            lambda locale: [babel.Locale(*pair).get_display_name(locale)],
        ])


def _named(codes: list[str], tables: list[dict[str, str]]) -> list[str]:
    """The codes that have a unique name in both locales, other than the code itself."""
    counts = [collections.Counter(table.get(code) for code in codes) for table in tables]
    return [
        code for code in codes
        if all(code in table and count[table[code]] == 1 and table[code] != code for table, count in zip(tables, counts))
    ]

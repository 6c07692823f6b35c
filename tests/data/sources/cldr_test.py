import re

from absl.testing import absltest, parameterized

from data.sources import cldr

MONTHS = {
    'January': 'janvier', 'February': 'février', 'March': 'mars', 'April': 'avril', 'May': 'mai', 'June': 'juin',
    'July': 'juillet', 'August': 'août', 'September': 'septembre', 'October': 'octobre', 'November': 'novembre',
    'December': 'décembre',
}  # fmt: skip


def words(text):
    return re.findall(r'[^\W\d_]+', text)


class PartsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.parts = cldr.parts('en', 'fr')

    def test_sizes(self):
        sizes = {name: len(pairs) for name, pairs in self.parts.items()}
        self.assertEqual((sizes['valid'], sizes['test']), (1000, 1000))
        self.assertBetween(sizes['train'], 20_000, 40_000)

    def test_parts_share_no_side_and_a_source_has_one_target(self):
        everything = [pair for part in self.parts.values() for pair in part]
        self.assertLen({source for source, _ in everything}, len(everything))
        for side in (0, 1):
            train, valid, test = ({pair[side] for pair in self.parts[name]} for name in ('train', 'valid', 'test'))
            self.assertTrue(train.isdisjoint(valid | test))
            self.assertTrue(valid.isdisjoint(test))

    def test_sources_stay_different_when_special_spaces_become_plain(self):
        everything = [' '.join(source.split()) for part in self.parts.values() for source, _ in part]
        self.assertLen(set(everything), len(everything))

    def test_what_is_held_out_is_made_of_words_that_were_seen(self):
        for side in (0, 1):
            known = {word for pair in self.parts['train'] for word in words(pair[side])}
            held = {word for name in ('valid', 'test') for pair in self.parts[name] for word in words(pair[side])}
            self.assertEmpty(held - known)

    def test_long_dates_agree_with_a_translation_by_hand(self):
        """'March 7, 2011' is '7 mars 2011'."""
        seen = 0
        for source, target in self.parts['train'] + self.parts['test']:
            if found := re.fullmatch(rf'({"|".join(MONTHS)}) (\d+), (\d{{4}})', source):
                self.assertEqual(target, f'{found[2]} {MONTHS[found[1]]} {found[3]}')
                seen += 1
        self.assertGreater(seen, 1000)

    def test_times_agree_with_a_translation_by_hand(self):
        seen = 0
        for source, target in self.parts['train'] + self.parts['test']:
            if found := re.fullmatch(r'(\d+):(\d\d)\u202f([AP])M', source):
                hour = int(found[1]) % 12 + 12 * (found[3] == 'P')
                self.assertEqual(target, f'{hour:02}:{found[2]}')
                seen += 1
        self.assertGreater(seen, 300)

    @parameterized.parameters(
        ('Germany', 'Allemagne'), ('German', 'allemand'), ('Côte d’Ivoire', 'Côte d’Ivoire'), ('French', 'français'))
    def test_names_alone_are_in_training(self, source, target):
        self.assertIn((source, target), self.parts['train'])

    def test_every_kind_is_there(self):
        text = '\n'.join(source for source, _ in self.parts['test'])
        for pattern in (r'\w+day, \w+ \d+, \d+', r'\d+/\d+/\d\d', r'\w+ \d{4}', r'[\d.]+%', r'[\d.]+ million', r'€[\d,.]+',
                        r'[\d,.]+ US dollars', r'[\d,.]+ meters per second', r'\w+, \w+, and \w+', r'\w+ \(\w+\)'):
            self.assertRegex(text, re.compile(f'^{pattern}$', re.MULTILINE))


class LocalesTest(parameterized.TestCase):
    @parameterized.parameters(
        ('de', 'es'), ('fr', 'en'), ('en', 'ja'), ('ar', 'zh_Hant'), ('en_US', 'en_GB'),
        ('en', 'rw'))  # which names hardly a country or a language
    def test_any_two_locales(self, source, target):
        parts = cldr.parts(source, target, count=1500)
        everything = [pair for part in parts.values() for pair in part]
        self.assertLen({text for text, _ in everything}, len(everything))
        self.assertGreater(len(everything), 1200)
        self.assertTrue(all(one.strip() and two.strip() for one, two in everything))
        self.assertGreater(len(parts['test']), 50)

    def test_two_styles_that_are_written_alike_have_the_translation_of_the_first(self):
        """'7 mars 2011' is how French writes 'March 7, 2011' and 'Mar 7, 2011'."""
        for source, target in cldr.parts('fr', 'en', count=4000)['train']:
            if re.fullmatch(r'\d+ (mars|mai|juin|août) \d{4}', source):
                self.assertRegex(target, r'^(March|May|June|August) ')

    def test_the_seed_decides(self):
        first, again = (cldr.parts('en', 'fr', count=500) for _ in range(2))
        self.assertEqual(first, again)
        self.assertNotEqual(first['train'], cldr.parts('en', 'fr', count=500, seed=1)['train'])

    @parameterized.parameters(('de-CH', "did you mean 'de_CH'"), ('englisch', "'englisch'; write one"), ('', 'write one'))
    def test_unknown_locale(self, name, message):
        with self.assertRaisesRegex(ValueError, message):
            cldr.parts('en', name)


if __name__ == '__main__':
    absltest.main()

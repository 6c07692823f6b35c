import math

import numpy as np
from absl.testing import absltest, parameterized

from transformer.evaluators.metrics import (
    bleu_counts,
    bleu_interval,
    bleu_of_counts,
    bleu_tokenizer,
    exact_matches,
    textbook_bleu,
    translation_scores,
    word_f1s,
)


class TextbookBleuTest(parameterized.TestCase):
    # The outputs of the textbook's Transformer, with the scores that it prints (section 11.7.5), and one by hand.
    @parameterized.parameters(
        ('va !', 'va !', 1.0), ('je perdu .', "j'ai perdu .", 0.687), ('il est mouillé .', 'il est calme .', 0.658),
        ('je suis chez moi .', 'je suis chez moi .', 1.0),
        ('il est calme , calme .', 'il est calme .', (4 / 6) ** 0.5 * (3 / 5) ** 0.25))
    def test_printed_scores(self, hypothesis, reference, score):
        self.assertAlmostEqual(textbook_bleu(hypothesis, reference, 2), score, delta=5e-4)

    def test_a_word_counts_as_often_as_the_reference_has_it(self):
        self.assertAlmostEqual(textbook_bleu('a a a a', 'a b c d', 1), (1 / 4) ** 0.5)

    def test_a_short_hypothesis_is_punished_and_has_no_longer_ngrams(self):
        self.assertAlmostEqual(textbook_bleu('a', 'a b', 2), 2.718281828 ** (1 - 2 / 1))
        self.assertEqual(textbook_bleu('', 'a b', 2), 0.0)


class ScoresTest(absltest.TestCase):
    def test_counts_of_texts_add_up_to_the_score_of_their_corpus(self):
        for language, texts, references in (
                ('fr', ['le chat est assis là', '', "j'ai vu."], ['le chat est assis ici', 'non', "j'ai tout vu ."]),
                ('zh', ['猫坐在垫子上面', '狗'], ['猫坐在垫子上了', '狗'])):
            counts = bleu_counts(texts, references, language)
            self.assertEqual(counts.shape, (len(texts), 10))
            for part in (slice(None), slice(1, None), slice(0, 1)):
                self.assertAlmostEqual(bleu_of_counts(counts[part]),
                                       translation_scores(texts[part], references[part], language)[0]['bleu'], places=10)
        self.assertEqual(bleu_of_counts(counts[:0]), 0)

    def test_the_interval_of_two_texts_is_from_the_worse_one_twice_to_the_better_one_twice(self):
        counts = bleu_counts(['a b c d e', 'a b c x y'], ['a b c d f', 'a b c d e'])  # each of these is a quarter of all draws
        low, high = bleu_interval(counts)
        self.assertEqual((low, high), tuple(sorted(bleu_of_counts(counts[[i, i]]) for i in (0, 1))))
        narrower = bleu_interval(np.concatenate([counts] * 100))
        self.assertTrue(low + 5 < narrower[0] < bleu_of_counts(counts) < narrower[1] < high - 5)

    def test_the_official_scorer_of_the_whole_corpus(self):
        texts, references = ['the cat sat on the mat .', 'a dog', 'yes'], ['the cat sat on a mat .', 'a dog', 'no']
        numbers, signatures = translation_scores(texts, references)
        self.assertAlmostEqual(numbers['exact_match'], 1 / 3)
        # By hand, over all three texts: 8 of 10 words, 5 of 7 pairs, 2 of 5 triples, 1 of 4 quadruples.
        precisions = [8 / 10, 5 / 7, 2 / 5, 1 / 4]
        self.assertAlmostEqual(numbers['bleu'], 100 * math.prod(precisions) ** 0.25, places=4)
        self.assertStartsWith(signatures[0], 'BLEU nrefs:1|')
        self.assertStartsWith(signatures[1], 'chrF nrefs:1|')
        self.assertEqual(translation_scores(['x y'], ['x y'])[0]['chrf'], 100.0)

    def test_n_grams_are_those_of_the_language(self):
        for language, tokenizer, text, reference in (
                ('fr', '13a', 'le chat est assis là', 'le chat est assis ici'),
                ('zh_Hans', 'zh', '猫坐在垫子上面', '猫坐在垫子上了'),
                ('ja', 'char', '猫がマットに座った', '猫がマットで座った'),
                ('th', 'char', 'แมวนั่งบนเสื่อ', 'แมวนอนบนเสื่อ')):
            numbers, signatures = translation_scores([text], [reference], language)
            self.assertIn(f'|tok:{tokenizer}|', signatures[0])
            self.assertBetween(numbers['bleu'], 20, 95, language)
        self.assertIn('|tok:13a|', translation_scores(['x'], ['x'])[1][0])
        named = {'zh': ('zh', 'zh_Hant_TW', 'zh-CN', 'zho_Hans', 'tok.zh'), 'char': ('ja_JP', 'ko', 'lo', 'km', 'my', 'JA'),
                 '13a': ('', 'en', 'de_AT', 'thx', 'zhx')}
        for tokenizer, languages in named.items():
            self.assertEqual({bleu_tokenizer(language) for language in languages}, {tokenizer})


class AnswersTest(parameterized.TestCase):
    @parameterized.parameters(
        ('The Denver Broncos!', ['denver  broncos'], 100, 100),  # case, article, punctuation, white space
        ('a an the', ['the'], 100, 100),
        ('theme', ['me'], 0, 0),  # an article is a whole word
        ('U.S.', ['US'], 100, 100),  # punctuation is taken out, not replaced
        ('twenty-one', ['twenty one'], 0, 0),
        ('\u201cone\u201d', ['one'], 0, 0),  # punctuation of ASCII alone
        ('new york city', ['new york', 'york city hall'], 0, 80),  # 2 * 1 * 2/3 / (5/3)
        ('to be or not to be', ['to be to be to be'], 0, 200 * 4 / 12),  # words count as often as both have them
        ('x', ['y', 'x'], 100, 100),
        ('', [''], 100, 100),
        ('', [], 100, 100),
        ('an', ['the', 'apple'], 0, 0),  # of several, those that are nothing once normalised do not count
        ('', ['x'], 0, 0),
        ('x', [''], 0, 0),
    )
    def test_one_answer(self, answer, accepted, exact, overlap):
        self.assertAlmostEqual(exact_matches([answer], [accepted])[0], exact)
        self.assertAlmostEqual(word_f1s([answer], [accepted])[0], overlap)

    def test_the_mean_over_questions(self):
        answers, accepted = ['one', 'two three', 'four'], [['one'], ['two'], ['five']]
        self.assertEqual(exact_matches(answers, accepted), [100, 0, 0])
        np.testing.assert_allclose(word_f1s(answers, accepted), [100, 200 / 3, 0])
        with self.assertRaisesRegex(ValueError, '3 answers were given to 2 questions'):
            word_f1s(answers, accepted[:2])


if __name__ == '__main__':
    absltest.main()

"""Scores of texts against their references: translations, and answers to questions."""

import collections
import math
import re
import string
from collections.abc import Sequence

import numpy as np

# sacrebleu's tokenizer for BLEU by ISO 639 code; '13a' for all others
_TOKENIZERS = {**dict.fromkeys(('zh', 'zho', 'chi', 'cmn', 'yue'), 'zh'),
               **dict.fromkeys(('ja', 'jpn', 'th', 'tha', 'ko', 'kor', 'lo', 'lao', 'km', 'khm', 'my', 'mya', 'bur'), 'char')}


def textbook_bleu(hypothesis: str, reference: str, k: int = 2) -> float:
    """exp(min(0, 1 - |reference| / |hypothesis|)) · product over n = 1..k of p_n^(1/2^n), with p_n the share of the
    hypothesis's n-grams that the reference has too, each counted at most as often as there: BLEU of one sentence, split at
    spaces, as Dive into Deep Learning defines it (Zhang et al., section 10.7.6, after Papineni et al. 2002). For a hypothesis
    shorter than k, n ends at its length; an empty one scores 0."""
    hypothesis, reference = hypothesis.split(), reference.split()
    if not hypothesis:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference) / len(hypothesis)))
    for n in range(1, min(k, len(hypothesis)) + 1):
        found = _ngrams(hypothesis, n)
        score *= ((found & _ngrams(reference, n)).total() / found.total()) ** 0.5 ** n
    return score


def _ngrams(words, n):
    return collections.Counter(tuple(words[i:i + n]) for i in range(len(words) - n + 1))


def translation_scores(hypotheses: Sequence[str], references: Sequence[str], language: str = '') -> tuple[dict, list]:
    """({'bleu', 'chrf', 'exact_match'}, [the signatures of BLEU and chrF]) of lists of texts: BLEU and chrF of the whole
    corpus, in percent, by sacrebleu (Post 2018; Papineni et al. 2002; Popović 2015), and the share of texts that equal their
    reference.

    Args:
      language: the language of the texts, such as 'fr' or 'zh_Hans'; '': unknown. BLEU counts n-grams of words (13a), for
        Chinese of characters and other words (zh), and for Japanese, Thai, Korean, Lao, Khmer and Burmese of characters
        (char), as sacrebleu's own tokenizers for Japanese and Korean need MeCab.
    """
    from sacrebleu import metrics

    bleu, chrf = metrics.BLEU(tokenize=bleu_tokenizer(language), force=True), metrics.CHRF()
    numbers = {'bleu': bleu.corpus_score(hypotheses, [references]).score,
               'chrf': chrf.corpus_score(hypotheses, [references]).score,
               'exact_match': sum(map(str.__eq__, hypotheses, references)) / len(references)}
    return numbers, [f'BLEU {bleu.get_signature()}', f'chrF {chrf.get_signature()}']


def bleu_counts(hypotheses: Sequence[str], references: Sequence[str], language: str = '') -> np.ndarray:
    """int [texts, 10]: what sacrebleu adds up over the texts of a corpus for its BLEU: for n = 1..4 the n-grams that the
    reference has too, then all n-grams, and the lengths of the hypothesis and of the reference, in tokens. Arguments as of
    translation_scores."""
    from sacrebleu import metrics

    # effective_order changes the score of a sentence alone, which is not used, and silences a warning about it
    bleu = metrics.BLEU(tokenize=bleu_tokenizer(language), force=True, effective_order=True)
    found = [bleu.sentence_score(hypothesis, [reference]) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    return np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in found], int).reshape(-1, 10)


def bleu_of_counts(counts: np.ndarray) -> float:
    """BLEU, in percent, of the texts with these counts [texts, 10], as in translation_scores; 0 for no texts."""
    from sacrebleu import metrics

    total = [int(count) for count in counts.sum(0)]
    return metrics.BLEU.compute_bleu(total[:4], total[4:8], *total[8:], smooth_method='exp').score


def bleu_interval(counts: np.ndarray) -> tuple[float, float]:
    """(low, high): the 2.5th and the 97.5th percentile of BLEU over 1,000 draws, with replacement, of as many texts (Koehn
    2004)."""
    rng, texts = np.random.default_rng(0), len(counts)
    drawn = [bleu_of_counts(rng.multinomial(texts, np.full(texts, 1 / texts))[None] @ counts) for _ in range(1000)]
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def rouge_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, np.ndarray]:
    """{'rouge1', 'rouge2', 'rougeL'}: for each text the F1 of stemmed words, of their bigrams and of the longest common
    subsequence (Lin 2004), in percent, by rouge-score, for which words are of a-z and digits: texts in other scripts have 0.
    Raises ValueError if it is not installed."""
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise ValueError(f'ROUGE needs rouge-score ({error}); install it with pip.') from error

    scorer = rouge_scorer.RougeScorer(['rouge1', 'rouge2', 'rougeL'], use_stemmer=True)
    found = [scorer.score(reference, hypothesis) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    return {name: 100 * np.array([one[name].fmeasure for one in found]) for name in scorer.rouge_types}


def bleu_tokenizer(language: str) -> str:
    """sacrebleu's tokenizer for a language, given as a locale or as the ending of a file, such as 'tok.zh'."""
    return _TOKENIZERS.get(re.split('[-_]', language.rpartition('.')[2].lower())[0], '13a')


def normalised(answer: str) -> str:
    """An answer as SQuAD compares it: in lower case, without punctuation, articles and extra white space."""
    plain = ''.join(character for character in answer.lower() if character not in string.punctuation)
    return ' '.join(re.sub(r'\b(a|an|the)\b', ' ', plain).split())


def exact_matches(answers: Sequence[str], accepted: Sequence[Sequence[str]]) -> list[float]:
    """For each question 100 if the answer, once normalised, equals an accepted one, else 0 (evaluate-v2.0.py of Rajpurkar et
    al. 2018); the mean is the exact match in percent.

    Args:
      answers: the answer to each question, '' for none.
      accepted: the right answers to each question; ('',) or () if it has none.
    """
    return _percent(answers, accepted, lambda answer, right: float(answer == right))


def word_f1s(answers: Sequence[str], accepted: Sequence[Sequence[str]]) -> list[float]:
    """For each question the F1, in percent, between the words of the normalised answer and of the accepted answer for which it
    is highest. An empty answer scores 100 against an empty one, else 0. Arguments as of exact_matches."""
    return _percent(answers, accepted, _word_f1)


def _percent(answers, accepted, score) -> list[float]:
    if len(answers) != len(accepted) or not len(answers):
        raise ValueError(f'{len(answers)} answers were given to {len(accepted)} questions; expected one to each.')
    plain = [[text for text in map(normalised, texts) if text] or [''] for texts in accepted]
    return [100 * max(score(normalised(answer), text) for text in right) for answer, right in zip(answers, plain)]


def _word_f1(answer: str, right: str) -> float:
    ours, theirs = answer.split(), right.split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))  # the harmonic mean of common / ours and common / theirs

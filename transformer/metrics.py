"""How close translations are to their references."""

import collections
import math
import re

# sacrebleu's tokenizer for BLEU by ISO 639; '13a' for all others
_TOKENIZERS = {**dict.fromkeys(('zh', 'zho', 'chi', 'cmn', 'yue'), 'zh'),
               **dict.fromkeys(('ja', 'jpn', 'th', 'tha', 'ko', 'kor', 'lo', 'lao', 'km', 'khm', 'my', 'mya', 'bur'), 'char')}


def textbook_bleu(hypothesis, reference, k=2):
    """exp(min(0, 1 - |reference| / |hypothesis|)) · product over n = 1..k of p_n^(1/2^n), with p_n the share of the n-grams of
    the hypothesis that the reference has, too, each at most as often as there: BLEU of one sentence, split at spaces, as Dive
    into Deep Learning defines it (Zhang et al., section 10.7.6, after Papineni et al. 2002). Of a hypothesis shorter than k,
    n goes up to its length; of an empty one the score is 0."""
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


def translation_scores(hypotheses, references, language=''):
    """({'bleu', 'chrf', 'exact_match'}, [the signatures of the first two]) of lists of texts: BLEU and chrF of the whole
    corpus, in percent, by sacrebleu (Post 2018; Papineni et al. 2002; Popović 2015), and the share of texts that are their
    reference.

    Args:
      language: of the texts, such as 'fr' or 'zh_Hans'; '': unknown. BLEU counts n-grams of words (13a); of Chinese characters
        and other words (zh); in Japanese, Thai, Korean, Lao, Khmer and Burmese of characters (char), as sacrebleu's own choice
        for Japanese and Korean needs MeCab.
    """
    from sacrebleu import metrics

    bleu, chrf = metrics.BLEU(tokenize=bleu_tokenizer(language), force=True), metrics.CHRF()
    numbers = {'bleu': bleu.corpus_score(hypotheses, [references]).score,
               'chrf': chrf.corpus_score(hypotheses, [references]).score,
               'exact_match': sum(map(str.__eq__, hypotheses, references)) / len(references)}
    return numbers, [f'BLEU {bleu.get_signature()}', f'chrF {chrf.get_signature()}']


def bleu_tokenizer(language):
    """sacrebleu's tokenizer for a language: a locale, or the ending of a file in it, such as 'tok.zh'."""
    return _TOKENIZERS.get(re.split('[-_]', language.rpartition('.')[2].lower())[0], '13a')

r"""Learns to find the span of a text that answers a question, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/answer.py:runs/bert --config.data.path=squad.json --workdir=runs/squad
    printf 'Who wrote it?\tIt was written by Ada.\n' | python predict.py --workdir=runs/squad

The head scores each token as the first and as the last one of the answer (Devlin et al. 2019, section 4.2), with the dropout of
transformers' ...ForQuestionAnswering in the model's family. Files are in the format of SQuAD v1.1 or v2.0
(data/text/questions.py), whose exact match and F1 are measured.
"""

from configs.classify import family_of
from configs.finetune import BERT, begun, encoder_of, with_head

HEADS = dict.fromkeys((BERT, 'transformer.models.gpt:Gpt', 'transformer.models.encoder_decoder:EncoderDecoder'), 'Span()')


def get_config(variant=''):
    _, other = begun(variant, 'answer')
    (model, fields), _ = encoder_of(other.model)
    heads = HEADS | ({BERT: head_of(fields)} if model == BERT else {})
    return with_head(variant, 'answer', heads, 'data.text.questions:Questions', 'transformer.tasks.reading:Spans',
                     {'answers': 'transformer.evaluators.reading:AnswerScores'}, train='train[:90%]', valid='train[90%:]',
                     test='',
                     length=384)


def head_of(model):
    """The head for answers in the family of a BERT."""
    return 'Span(dropout=0.1)' if family_of(model) == 'distilbert' else HEADS[BERT]

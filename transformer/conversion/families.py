"""The families of text models that convert.py knows."""

from transformer.conversion.albert import ALBERT
from transformer.conversion.bart import BART
from transformer.conversion.bert import BERT
from transformer.conversion.distilbert import DISTILBERT
from transformer.conversion.electra import ELECTRA
from transformer.conversion.gpt2 import GPT2
from transformer.conversion.marian import MARIAN
from transformer.conversion.roberta import ROBERTA
from transformer.conversion.t5 import T5_MODELS

FAMILIES = *GPT2, *BERT, *ROBERTA, *ALBERT, *ELECTRA, *DISTILBERT, *T5_MODELS, *BART, *MARIAN

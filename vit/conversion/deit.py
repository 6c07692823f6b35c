"""The tables of DeiT, a ViT with a distillation token."""

import dataclasses

from transformer.conversion.common import bare, dense
from transformer.conversion.fields import Field
from transformer.conversion.tables import Family, Row
from vit.conversion.vit import WHOLE

_TOKEN = Row('distillation_token', 'deit.embeddings.distillation_token', 'D -> 1 1 D')


def _of(vit: Family, architecture: str, distillation: str, *rows: Row) -> Family:
    """The family of DeiT with the fields and the rows of one of ViT, and further rows."""
    own = tuple(dataclasses.replace(row, theirs=row.theirs.replace('vit.', 'deit.', 1)) for row in vit.rows)
    return dataclasses.replace(
        vit, kind='deit', architecture=architecture, prefix='deit.', rows=(*own, _TOKEN, *rows),
        implied=vit.implied | {'distillation': distillation},
        # The models of DeiT-III, which have no positions for the tokens in front, are not in this form.
        fixed=(*vit.fixed, Field('no_embed_class', default=False)))


_CLASSES, _POOLED, _BARE = WHOLE
DEIT = (
    # Its head reads the class token alone.
    _of(_CLASSES, 'DeiTForImageClassification', 'token'),
    _of(dataclasses.replace(_CLASSES, rows=_CLASSES.rows[:-2]), 'DeiTForImageClassificationWithTeacher', 'logits',
        *dense('head', 'cls_classifier'), *dense('distillation_head', 'distillation_classifier')),
    bare(_of(_POOLED, 'DeiTModel', 'token')), bare(_of(_BARE, 'DeiTModel', 'token')))

"""The families of image models that convert.py knows."""

from vit.conversion.davit import DAVIT
from vit.conversion.deit import DEIT
from vit.conversion.dinov2 import DINOV2
from vit.conversion.resnet import RESNET
from vit.conversion.swin import SWIN
from vit.conversion.timm_swin import TIMM_SWIN
from vit.conversion.vit import VIT
from vit.conversion.vit_mae import VIT_MAE

TIMM = *TIMM_SWIN, *DAVIT
FAMILIES = *VIT, *DEIT, *DINOV2, *VIT_MAE, *SWIN, *RESNET, *TIMM

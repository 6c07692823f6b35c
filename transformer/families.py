"""The families of text models that convert.py knows, as tables; how they are read is in `transformer.conversion`."""

from transformer.attention.masks import Causal
from transformer.attention.mechanism import Softmax
from transformer.attention.positions import Learned
from transformer.attention.scores import Dot
from transformer.conversion import Family, Field, Row
from transformer.residual import PreNorm

ACTIVATIONS = {'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu': 'gelu',
               'relu': 'relu'}

GPT2 = Family(
    kind='gpt2',
    model='transformer.gpt:Gpt',
    architecture='GPT2LMHeadModel',
    others=('GPT2Model',),
    prefix='transformer.',
    fields=(
        Field('vocab_size', 'vocab', 50257),
        Field('n_positions', 'length', 1024),
        Field('n_embd', 'width', 768),
        Field('n_layer', 'layers', 12),
        Field('n_head', 'heads', 12),
        Field('n_inner', 'inner', none=0),
        Field('activation_function', 'activation', 'gelu_new', ACTIVATIONS),
        Field('resid_pdrop embd_pdrop attn_pdrop', 'dropout', 0.1),
        Field('layer_norm_epsilon', 'epsilon', 1e-5),
        Field('scale_attn_weights', 'attention', True, {True: Softmax(), False: Softmax(score=Dot())}),
        Field('tie_word_embeddings', 'tied', True),
        Field('scale_attn_by_inverse_layer_idx', default=False),
        Field('add_cross_attention', default=False)),
    aside=('n_ctx', 'reorder_and_upcast_attn', 'summary_activation', 'summary_first_dropout', 'summary_proj_to_labels',
           'summary_type', 'summary_use_proj'),
    implied={'residual': PreNorm(), 'mask': Causal(), 'positions': Learned(), 'bias': True, 'key_heads': 0, 'kept': ()},
    rows=(
        Row('tokens/embedding', 'transformer.wte.weight'),
        Row('positions/embedding', 'transformer.wpe.weight'),
        Row('block_{i}/attention_norm/scale', 'transformer.h.{i}.ln_1.weight'),
        Row('block_{i}/attention_norm/bias', 'transformer.h.{i}.ln_1.bias'),
        Row('block_{i}/attention/{query,key,value}/kernel', 'transformer.h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)'),
        Row('block_{i}/attention/{query,key,value}/bias', 'transformer.h.{i}.attn.c_attn.bias', 'K N H -> (K N H)'),
        Row('block_{i}/attention/output/kernel', 'transformer.h.{i}.attn.c_proj.weight', 'N H D -> (N H) D'),
        Row('block_{i}/attention/output/bias', 'transformer.h.{i}.attn.c_proj.bias'),
        Row('block_{i}/feed_forward_norm/scale', 'transformer.h.{i}.ln_2.weight'),
        Row('block_{i}/feed_forward_norm/bias', 'transformer.h.{i}.ln_2.bias'),
        Row('block_{i}/feed_forward/input/kernel', 'transformer.h.{i}.mlp.c_fc.weight'),
        Row('block_{i}/feed_forward/input/bias', 'transformer.h.{i}.mlp.c_fc.bias'),
        Row('block_{i}/feed_forward/output/kernel', 'transformer.h.{i}.mlp.c_proj.weight'),
        Row('block_{i}/feed_forward/output/bias', 'transformer.h.{i}.mlp.c_proj.bias'),
        Row('norm/scale', 'transformer.ln_f.weight'),
        Row('norm/bias', 'transformer.ln_f.bias'),
        Row('output/kernel', 'lm_head.weight', 'D V -> V D')),
    inputs={'inputs': ((1, 1), 'int32')},
    computed=r'transformer\.h\.\d+\.attn\.(masked_)?bias',  # the causal mask
    copies={'lm_head.weight': 'transformer.wte.weight'})

FAMILIES = {family.kind: family for family in (GPT2,)}

"""End-to-end memory networks: a question is answered by attending to sentences several times (Sukhbaatar et al. 2015)."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.kernels.attend import masked_softmax
from transformer.layers.dense import Dense
from transformer.layers.dropout import fold
from transformer.layers.embedding import Embedding
from transformer.layers.initial import normal
from transformer.layers.numerics import Numerics, real_dtype
from transformer.layers.roles import table
from transformer.layers.sharding import several

TYINGS = ('adjacent', 'layerwise')
ENCODINGS = ('position', 'bag')


class MemoryNetwork(nn.Module):
    """K hops over sentences x_i of words x_ij, x_1 being the latest, with a question q (section 2):

        m_i = sum over j of l_j·A[x_ij] + T_A[i]        c_i = sum over j of l_j·C[x_ij] + T_C[i]
        u¹ = sum over j of l_j·B[q_j]                   p = softmax over i of u·m_i          (eq. 1)
        o = sum over i of p_i·c_i   (eq. 2)             u' = u + o                           (eq. 4)
        logits = W·u of the last hop                                                         (eq. 3)

    With skip=False u' = o: the question enters through the attention weights alone. With an inner width F a multilayer
    perceptron answers, logits = W·relu(M·u + b) + c, M [F, D], W [V, F].

    The hops have tables A¹, C¹, .., Aᴷ, Cᴷ (section 2.2). With the tying 'adjacent', Aᵏ⁺¹ = Cᵏ, B = A¹, Wᵀ = Cᴷ; with
    'layerwise', all A are one table, all C are another, and u' = H·u + o. T_A and T_C are tied as A and C are.

    With the encoding 'position', word j of J has the weight l_jd = (1 - j/J) - (d/D)(1 - 2j/J) in unit d of D (section 4.1);
    with 'bag', 1.

    Attributes:
      vocab: V, the number of words, with 0 for no word; the answers are among them. By default the data's.
      memory: M, the number of sentences in the memory; by default the data's.
      hops: K.
      width: D.
      tying: 'adjacent' or 'layerwise'.
      encoding: 'position' or 'bag'.
      temporal: whether to add T_A and T_C (section 4.1, temporal encoding).
      rectified: share of the units of u that pass a ReLU after each hop, in [0, 1] (section 5 uses 0.5, with 'layerwise').
      noise: the probability in training that an empty memory is inserted before a sentence, which makes it and all earlier
        ones seem older; sentences pushed past the end share the last age (section 4.1, learning time invariance by
        injecting random noise, uses 0.1).
      skip: u' = u + o (with 'layerwise', H·u + o); False: u' = o.
      inner: F; 0: logits = W·u.
      scale: standard deviation of all parameters at the start.
    """
    vocab: int
    memory: int
    hops: int = 3
    width: int = 50
    tying: str = 'adjacent'
    encoding: str = 'position'
    temporal: bool = True
    rectified: float = 0.0
    noise: float = 0.1
    skip: bool = True
    inner: int = 0
    scale: float = 0.1
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    attentions = {}  # no heads that `head_mask` could switch off

    @nn.compact
    def __call__(self, story: jax.Array, question: jax.Array, *, linear: bool | jax.Array = False, key: jax.Array | None = None,
                 capture: tuple = ()) -> dict:
        """story [B, M, J], the latest sentence first, question [B, J] -> {'logits' [B, V], 'hidden' [B, D]}, the last u.

        Args:
          linear: a boolean, which may be traced: omit the softmax, p_i = u·m_i, as in the first part of training (section
            4.2, linear start).
          key: random key of training; None: no noise.
          capture: with 'attention' the outputs include the weights p of each hop, 'hop_1/attention' [B, 1, 1, M], ..

        A sentence without words is an empty memory, with weight 0.
        """
        self._check(story)
        numerics = self._numerics()
        adjacent = self.tying == 'adjacent'
        count = self.hops + 1 if adjacent else 2
        words = self._tables('words', count, self.vocab)
        times = self._tables('times', count if self.temporal else 0, self.memory)
        first, last = (words[0], words[-1]) if adjacent else (
            self._tables('question', 1, self.vocab)[0], None if self.inner else self._tables('answer', 1, self.vocab)[0])

        story, question = jnp.asarray(story), jnp.asarray(question)
        there = story.any(-1)  # [B, M]
        age = jnp.broadcast_to(jnp.arange(self.memory), there.shape)
        if key is not None and self.noise:
            empty = jax.random.bernoulli(fold(key, 'noise'), self.noise, there.shape)
            age = jnp.minimum(age + jnp.cumsum(empty, -1), self.memory - 1)
        memories = self._stored(story, age, words, times)  # each [B, M, D]
        u, = self._encoded(question, [first])  # [B, D]
        if not adjacent and self.skip:
            between = Dense(self.width, bias=False, kernel_init=normal(self.scale), numerics=numerics, name='between')
        rectified, aux = jnp.arange(self.width) < round(self.rectified * self.width), {}
        for hop in range(self.hops):
            keys, values = memories[hop:hop + 2] if adjacent else memories
            scores = numerics.scores('BD,BMD->BM', u, keys)
            weights = jnp.where(linear, jnp.where(there, scores, 0.0), masked_softmax(scores, there))
            aux |= {f'hop_{hop + 1}/attention': weights[:, None, None]} if 'attention' in capture else {}
            o = numerics.einsum('BM,BMD->BD', weights, values)
            u = (u if adjacent else between(u)) + o if self.skip else o
            u = jnp.where(rectified, nn.relu(u), u)
        return {'logits': self._answer(u, last, numerics), 'hidden': u} | aux

    def _answer(self, u, last, numerics):
        """[B, D] -> logits [B, V], by the table `last` or a perceptron."""
        if not self.inner:
            return numerics.dense(u, last.T)
        inner = Dense(self.inner, kernel_init=normal(self.scale), numerics=numerics, name='inner')
        output = Dense(self.vocab, role=table(1), kernel_init=normal(self.scale), numerics=numerics, name='output')
        return output(nn.relu(inner(u)))

    def _numerics(self):
        return Numerics(self.dtype, parameter_dtype=self.parameter_dtype)

    def _tables(self, name, count, rows):
        """`count` tables [rows, D]."""
        table = partial(Embedding, rows, self.width, kernel_init=normal(self.scale), numerics=self._numerics())
        return [table(name=f'{name}_{i}').embedding for i in range(count)]

    def _stored(self, story, age, words, times):
        """m or c of each sentence by each pair of tables: [B, M, J], [B, M] -> [B, M, D]. Stories differ in length, so most
        memories are empty: if the others fit into a quarter of the rows, a single device computes only those."""
        batch, memory, length = story.shape
        story, age, few = story.reshape(-1, length), age.ravel(), batch * memory // 4
        there = story.any(-1)

        def packed():
            place, = jnp.nonzero(there, size=few, fill_value=len(story))
            return [jnp.zeros((len(story), self.width), rows.dtype).at[place].set(rows, mode='drop')
                    for rows in self._encoded(story[place], words, age[place], times)]

        whole = lambda: self._encoded(story, words, age, times)
        found = whole() if several() else jax.lax.cond(there.sum() <= few, packed, whole)  # several would each compute all
        return [rows.reshape(batch, memory, -1) for rows in found]

    def _encoded(self, ids, words, age=None, times=()):
        """sum over j of l_j·table[ids_j], by each table of words, and its time[age]: [R, J], [R] -> [R, D].

        With l_jd = a_j - (d/D)·b_j this equals a·X·E - (d/D)·(b·X·E), where X are the words as one-hot vectors: a·X and b·X
        serve all tables, and one product with them takes a third of the time of a lookup in each table."""
        place = jnp.arange(1, ids.shape[-1] + 1)
        length = jnp.maximum(jnp.where(ids > 0, place, 0).max(-1, keepdims=True), 1)
        real, share = (ids > 0).astype(real_dtype()), place.astype(real_dtype()) / length
        weights = [real] if self.encoding == 'bag' else [real * (1 - share), real * (1 - 2 * share)]
        unit = jnp.tile(jnp.arange(1, self.width + 1) / self.width, len(words))
        bags = [_bag(ids, one, self.vocab) for one in weights]
        kernels = [scale * jnp.concatenate(words, 1) for scale in (1.0, -unit)[:len(bags)]]
        if times:
            bags.append((age[:, None] == jnp.arange(self.memory)).astype(real_dtype()))
            kernels.append(jnp.concatenate(times, 1))
        encoded = self._numerics().dense(jnp.concatenate(bags, -1), jnp.concatenate(kernels))
        return jnp.split(encoded, len(words), -1)

    def _check(self, story):
        for name, given, known in (('tying', self.tying, TYINGS), ('encoding', self.encoding, ENCODINGS)):
            if given not in known:
                raise ValueError(f'model.{name} is {given!r}; expected one of {", ".join(known)}.')
        if self.inner < 0:
            raise ValueError(f'model.inner is {self.inner}; expected a width, or 0 for none.')
        if not (self.hops >= 1 and self.width >= 1 and 0 <= self.rectified <= 1 and 0 <= self.noise < 1):
            raise ValueError(f'model.hops is {self.hops}, model.width {self.width}, model.rectified {self.rectified} and '
                             f'model.noise {self.noise}; expected at least 1, at least 1, a share in [0, 1] and one in [0, 1).')
        if story.shape[1] != self.memory:
            raise ValueError(f'A story has {story.shape[1]} sentences, but the memory holds {self.memory}; set data.memory to '
                             'that, or leave model.memory out of the config.')


def _bag(ids, weights, vocab):
    """sum over j of weights_j·onehot(ids_j): [R, J], [R, J] -> [R, V]."""
    rows = jnp.arange(vocab)
    return sum(jnp.where(ids[:, j, None] == rows, weights[:, j, None], 0.0) for j in range(ids.shape[1]))

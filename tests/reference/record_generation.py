"""Records what Hugging Face transformers generate under settings of many kinds, with the recorded models beside this file.

    python tests/reference/record_generation.py         with torch and transformers 5 beside numpy

Writes generation.json: {model: [[settings, ids of each row up to the end], ..]}, for the prompts in case.npz of the model.
"""

import json
import pathlib

import numpy as np
import torch
import transformers as hf

HERE = pathlib.Path(__file__).parent
MODELS = {'gpt2': hf.GPT2LMHeadModel, 't5': hf.T5ForConditionalGeneration, 'bart': hf.BartForConditionalGeneration}
EXACT = {'early_stopping': 'never'}
SETTINGS = (
    {'max_new_tokens': 6, 'num_beams': 3, 'length_penalty': 2.0, **EXACT},
    {'max_new_tokens': 9, 'num_beams': 4, 'length_penalty': 0.5, 'no_repeat_ngram_size': 2, **EXACT},
    {'max_new_tokens': 8, 'num_beams': 2, 'length_penalty': 0.0, 'repetition_penalty': 3.0, 'min_new_tokens': 3},
    {'max_new_tokens': 9, 'do_sample': False, 'repetition_penalty': 1.7},
    {'max_new_tokens': 9, 'num_beams': 1, 'no_repeat_ngram_size': 1, 'suppress_tokens': [5, 11]},
    {'max_new_tokens': 7, 'num_beams': 1, 'bad_words_ids': [[3], [33]], 'min_new_tokens': 4},
    {'max_new_tokens': 5, 'do_sample': True, 'top_k': 1, 'temperature': 0.7})
OF_DECODERS = (  # that are given a token first
    {'max_length': 9, 'num_beams': 4, 'length_penalty': 2.0, 'min_length': 5, 'forced_bos_token_id': 7,
     'no_repeat_ngram_size': 3, **EXACT},
    {'max_length': 6, 'num_beams': 1, 'min_length': 4})


def generated(model, settings, prompts):
    """The new tokens of each row, up to the end; one row at a time, as there what fills a row up counts as repeated."""
    end, rows = model.generation_config.eos_token_id, []
    for ids, there in zip(prompts['input_ids'], prompts['attention_mask']):
        ids = ids[there == 1][None]
        row = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)[0]
        row = row[1 if model.config.is_encoder_decoder else ids.shape[1]:].tolist()
        rows.append(row[:row.index(end) + 1] if end in row else row)
    return rows


def main():
    recorded = {}
    for name, kind in MODELS.items():
        model = kind.from_pretrained(HERE / name).eval()
        model.generation_config.pad_token_id = 0
        with np.load(HERE / name / 'case.npz') as file:
            prompts = {key.removeprefix('prompt/'): torch.tensor(x) for key, x in file.items() if key.startswith('prompt/')}
        settings = SETTINGS if name == 'gpt2' else SETTINGS + OF_DECODERS
        recorded[name] = [[one, generated(model, one, prompts)] for one in settings]
    lines = [f'"{name}": [\n' + ',\n'.join(map(json.dumps, cases)) + '\n]' for name, cases in recorded.items()]
    (HERE / 'generation.json').write_text('{\n' + ',\n'.join(lines) + '\n}\n')


if __name__ == '__main__':
    main()

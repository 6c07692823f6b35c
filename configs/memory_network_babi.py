r"""End-to-end memory networks on bAbI: questions about short stories, answered by a word (Sukhbaatar et al. 2015).

    python train.py --config=configs/memory_network_babi.py[:VARIANT] --config.data.path=FOLDER

:joint  one network for all 20 tasks, 10,000 questions each.
:task   a network for one task, --config.data.tasks='(1,)' unless told otherwise. For each of them:

    task="python train.py --config=configs/memory_network_babi.py:task --config.data.path=FOLDER"
    for n in $(seq 15) $(seq 17 20); do $task --config.data.tasks="($n,)" --workdir=runs/babi_$n; done
    $task '--config.data.tasks=(16,)' --workdir=runs/babi_16 --config.model.tying=adjacent --config.model.hops=3 \
        --config.task.linear_steps=500

`FOLDER` holds en-10k/ or an archive of it (see data/text/babi.py). In the measurements here, task 3 has 1,000 questions in
place of 10,000, and validation is the last tenth of the stories of each training part; the test parts were not used. Of
task 4, 706 of the 1,000 stories of validation also stand in training, word for word; no story of the other tasks does.

:joint, 272,384 parameters, 44.7 epochs, wrong answers to 19,107 questions in percent, tasks 1 to 20 in rows of five:

     0.0   0.0  26.0   0.0   0.3
     0.0   1.2   0.8   0.0   0.0
     0.0   0.0   0.0   0.1   0.0
    56.5  12.6   5.5   8.0   0.0     mean 5.56, without task 3 4.48 (the paper's joint mean: 7.5)

60 minutes on one core of a Xeon, beside other work (Python 3.11, jax 0.10.2, float32). With half as many steps tasks 17 and 19
end at 21.1 and 51.4, and the mean is 7.95.

:task, with 27,648 (task 16) to 138,240 parameters, of 1,000 questions each (100 of task 3):

     0.0   2.2  76.0   0.0   0.1
     0.0   2.0   0.7   0.0   0.0
     0.0   0.0   0.0   1.4   0.0
     0.1   6.1   3.2  11.0   0.0     mean 5.14, without task 3 1.41 (the paper's mean over networks of one task: 4.2)

1 to 5.5 minutes for each on one core, beside other work. Task 16 has settings of its own because the others leave it at 54 on
this validation part (in width 128, see below), which would make the mean about 7.8.

What differs from the paper's joint training (SGD, width 50, 3 hops, 'adjacent', linear start, 60 epochs): Adam, width 256, 4
hops, layer-wise tying, half of the units rectified as in its section 5, no linear start. Tasks 16, 17 and 19 in one network of
width 128 with 3 hops, after 4,000 steps at a learning rate of 0.003, with 500 steps of linear start and without it:

    adjacent     0.0  35.2  69.5     51.8  31.4  76.3
    layerwise   53.9  33.5  44.9     53.2  33.3  35.1

Only 'adjacent' with a linear start learns task 16, and not among all 20 (width 128: 53.9 after 40,000 steps of 64).
"""

from configs import base


def get_config(variant=''):
    variant = base.variant_of(variant, ('joint', 'task'))
    c = base.config()
    c.data = base.data('data.text.babi:Babi', path='babi', tasks=() if variant == 'joint' else (1,), batch_size=128)
    c.model = base.part('transformer.models.memory_network:MemoryNetwork', hops=4, width=256, tying='layerwise', rectified=0.5)
    c.task = base.part('transformer.tasks.stories:MemoryAnswers')
    c.optimizer = base.optimizer(learning_rate=2e-3, clip=40.0, schedule=base.part('training.schedules:CosineDecay'))
    c.train.steps = 60_000 if variant == 'joint' else 5000
    c.log.every_steps = 500
    c.checkpoint.every_steps = 5000
    c.evals.valid = base.evaluation('transformer.evaluators.stories:TaskErrors', split='valid', every_steps=2500)
    return c.lock()

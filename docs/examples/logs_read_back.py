"""Log a sweep for TensorBoard and as CSV while it runs, and read both back."""

import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedjax_sim
from fedjax_sim import Ticks, Watch, datasets, models, partition, problems
from fedjax_sim.results import trackers
from fedjax_sim.systems import fedavg

digits = datasets.load("digits")
split = partition.make("iid", digits.train_labels, num_clients=10, seed=0)
problem = problems.make_classification(models.MLP((), 10), digits, split)
hyper = fedavg.paper(num_clients=10, num_selected=5, local_steps=5, batch_size=16)
kept = [trackers.CSV("log.csv"), trackers.TensorBoard("logs")]  # tensorboard --logdir logs
watch, rates = Watch(trackers=kept), {"lr": [0.1, 0.3]}
run = fedjax_sim.sweep(fedavg.system, problem, hyper, settings=rates, budget=Ticks(50), watch=watch)
for tracker in kept:
    tracker.close()

table = pd.read_csv("log.csv").query("metric == 'accuracy'")
print(table.pivot(index="ticks", columns="lane", values="value"))
events = EventAccumulator("logs/fedavg lr=0.3 seed=0")
events.Reload()
print([(event.step, event.value) for event in events.Scalars("accuracy")][-3:])

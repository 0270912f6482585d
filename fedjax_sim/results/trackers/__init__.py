"""Trackers: keep the metrics of lanes while they run, for TensorBoard and other tools.

    kept = [trackers.CSV("log.csv"), trackers.TensorBoard("logs")]
    sweep(..., watch=fedjax_sim.Watch(trackers=kept))
    fedjax-sim run favano --tracker csv,tensorboard --out results

A tracker is anything with the methods `log` and `close` of `Tracker`. Each
evaluation of each lane is logged once. A resumed run logs everything from its beginning again, so
that its log is whole. The packages behind TensorBoard, Weights & Biases and MLflow are extras, such
as `pip install "fedjax-sim[tensorboard]"`, and are loaded when such a tracker is made.
"""

from fedjax_sim.results.trackers.catalogue import TRACKERS as TRACKERS
from fedjax_sim.results.trackers.catalogue import check_tracker as check_tracker
from fedjax_sim.results.trackers.catalogue import make_tracker as make_tracker
from fedjax_sim.results.trackers.csv_file import CSV as CSV
from fedjax_sim.results.trackers.labels import Tracker as Tracker
from fedjax_sim.results.trackers.mlflow_runs import MLflow as MLflow
from fedjax_sim.results.trackers.tensorboard_events import TensorBoard as TensorBoard
from fedjax_sim.results.trackers.weights_and_biases import WandB as WandB

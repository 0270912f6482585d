"""Studies on several machines: run the lanes of a study in parts, and put them together.

Lanes do not communicate. A *part* of a study is some of its lanes: whole groups of equal program
and schedule, balanced by the local steps that are known before anything is compiled
(`fedjax_sim.engine.shares`). Each part runs alone, into a folder that is its own, and `merge`
writes what the whole run would have written; with a layout that is given, the same bits.

By hand, on any machines:

    fedjax-sim run favano fedbuff --seeds 6 --set lr=0.1,0.2,0.5 --part 0/2 --out part-0
    fedjax-sim run favano fedbuff --seeds 6 --set lr=0.1,0.2,0.5 --part 1/2 --out part-1
    fedjax-sim merge part-0 part-1 --out results

A *launcher* starts the parts, waits, shows the progress of all, and merges. On one machine, a
process for each GPU, or for each group of cores:

    fedjax-sim run favano fedbuff --seeds 6 --set lr=0.1,0.2,0.5 --parts 2 --out results

A part that failed is named with its last line and with the command that runs it again alone;
`--resume` runs all that are unfinished, while the others check that nothing has changed. A run that
is asked to end (SIGTERM, SIGUSR1, SIGUSR2) saves, ends with exit code 75, and is started again by
its launcher. On Linux parts are killed together with the process that started them, if that is
killed; elsewhere they go on, and `--resume` is refused with a sentence until they have ended.

**Slurm** (`pip install "fedjax-sim[slurm]"`). One array job with a task for each part, from a login
node and into a folder that all nodes see. Slurm signals a task `signal_delay_s` seconds before its
time limit and when it is preempted; the run then saves, the task goes back into the queue, and
there it resumes.

    fedjax-sim run favano --dataset mnist --seeds 20 --set lr=0.05,0.1,0.2,0.5 \\
        --layout slots_at_once=20,lanes_at_once=false,client_devices=1 \\
        --launcher slurm --parts 8 \\
        --resources timeout_min=240,signal_delay_s=300,gpus=1,cpus=8,mem_gb=32,partition=gpu \\
        --out /shared/me/study

The same from Python:

    from fedjax_sim import Checkpoints, Time, datasets, launch, models, partition, problems
    from fedjax_sim.systems import favano

    def problem(seed):
        mnist = datasets.load("mnist")
        split = partition.make("classes", mnist.train_labels, num_clients=100, seed=seed)
        return problems.make_classification(models.MLP((32,), 10), mnist, split)

    run = launch.sweep(
        favano.system,
        problem,
        seeds=20,
        settings={"lr": [0.05, 0.1, 0.2, 0.5]},
        budget=Time(5000),
        parts=8,
        launcher=launch.Slurm(timeout_min=240, signal_delay_s=300, gpus=1, cpus=8, partition="gpu"),
        checkpoints=Checkpoints("/shared/me/study"),
    )

**Ray** (`pip install "fedjax-sim[ray]"`). A task for each part, on a cluster that runs already
(`address=auto`, on one of its nodes) or else on this machine:

    fedjax-sim run favano --dataset mnist --seeds 20 --set lr=0.05,0.1,0.2,0.5 \\
        --launcher ray --parts 8 --resources num_gpus=1,num_cpus=8,address=auto \\
        --out /shared/me/study

    run = launch.sweep(..., parts=8, launcher=launch.Ray(num_gpus=1, num_cpus=8, address="auto"),
                       checkpoints=Checkpoints("/shared/me/study"))

What a launcher does not do: it copies no files. The package, the data and the folders must be where
the parts look for them, as on a cluster with a shared file system.
"""

from fedjax_sim.core.lifecycle import PartError as PartError
from fedjax_sim.launch.jobs import Local as Local
from fedjax_sim.launch.jobs import Ray as Ray
from fedjax_sim.launch.jobs import Slurm as Slurm
from fedjax_sim.launch.parts import sweep as sweep

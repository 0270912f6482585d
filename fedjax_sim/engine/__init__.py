"""The engine: draw schedules, place lanes on devices, replay the schedules through an algorithm.

It knows no system and no problem. Rooms, in the order of a call:

    sweeps     `sweep` and `simulate`: from a caller's inputs to labelled results
    request    what was asked for, checked and listed as lanes
    shares     which lanes run here, where a sweep is shared out
    planning   phase one, on the host: schedules are drawn and laid out, lanes get devices
    program    phase two: the compiled program that replays schedules
    running    as many lanes at a time as fit in memory, chunk by chunk
    resuming   checkpoints, and runs that go on
    watching   progress, trackers, and callers that stop lanes
    contract   what users write, checked
    machine    memory, processes and compilers

With several processes all of them make the same calls. `fedjax_sim.results` holds what comes out.

What is deterministic. The same call on the same machine with the same versions gives the same bits,
in one piece or resumed from a checkpoint; on a GPU only with the flag
`XLA_FLAGS=--xla_gpu_deterministic_ops=true`. A schedule depends on seed and settings alone, up to
the last bit of its times. With `lanes_at_once` given by the caller, a lane's bits do not depend on
which other lanes run, nor on how many run at a time. Another layout, precision, machine or version
of JAX adds up in another order: results then agree up to rounding, which a long run may amplify.
Random numbers are those of JAX's implementation `jax_default_prng_impl`, which `config.json`
records.
"""

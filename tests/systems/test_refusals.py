"""Settings of systems that do not go together: each pair gets one sentence, before any run.

Values outside of a setting's own type are tried in `tests/checking/test_declared_settings.py`.
"""

from typing import Any

import optax
import pytest

import fedjax_sim
from fedjax_sim import ConfigError
from fedjax_sim.core.schedules import InverseTime
from fedjax_sim.core.settings import check
from fedjax_sim.server.compression import parse_compressor
from fedjax_sim.server.privacy import LocalGaussian

STATIC = {"num_clients": 12, "num_selected": 2, "policy": "static"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("adacomm", {"adapt_every": 50.0, "time_of": "update"}, "time_of is 'update', .*shorter"),
    (
        "fedat",
        {"num_clients": 11, "num_selected": 2, "num_tiers": 12},
        "num_tiers is 12, .*most num_clients = 11",
    ),
    (
        "fedat",
        {"num_clients": 11, "num_tiers": 3, "num_selected": 4},
        "num_selected is 4, but must be at most 3, the clients of the small",
    ),
    (
        "fedcs",
        {"num_clients": 12, "num_selected": 4, "num_candidates": 3},
        "choice.num_candidates is 3, but must be 0, or from num_selected",
    ),
    (
        "fedcs",
        {"num_clients": 12, "num_selected": 4, "num_candidates": 13},
        "choice.num_candidates is 13, .* to 12",
    ),
    ("oort", {"num_clients": 12, "num_selected": 4, "num_asked": 3}, "num_asked is 3"),
    ("oort", {"num_clients": 12, "num_selected": 13}, "num_selected is 13"),
    ("pisces", {"num_clients": 9, "concurrency": 10}, "concurrency is 10, .*num_clients = 9"),
    (
        "pisces",
        {"num_clients": 9, "concurrency": 4, "most_reports": 10},
        "most_reports is 10, but must be at most num_clients = 9",
    ),
    (
        "pisces",
        {"local_privacy": LocalGaussian(clip=1.0, noise=1.0)},
        "must be without noise here, because",
    ),
    ("powerofchoice", {"num_selected": 5, "num_chosen": 6}, "num_chosen is 6"),
    ("powerofchoice", {"num_selected": 5, "num_chosen": 2, "num_asked": 7}, "num_asked is 7"),
    (
        "powerofchoice",
        {"num_clients": 9, "num_selected": 10, "num_chosen": 2},
        "num_selected is 10",
    ),
    ("safa", {"num_clients": 10, "num_selected": 11}, "num_selected is 11, .*num_clients = 10"),
    (
        "tifl",
        {"num_clients": 12, "num_selected": 2, "num_tiers": 7},
        "choice.num_tiers is 7, but must be at most 6, so that every tier",
    ),
    (
        "tifl",
        {"num_clients": 12, "num_selected": 2, "num_tiers": 4, "num_asked": 4},
        "choice.num_tiers is 4, but must be at most 3",
    ),
    (
        "tifl",
        {"num_clients": 12, "num_selected": 2, "num_tiers": 4, "credits": (1.0, 2.0)},
        "choice.credits is .*, but must be one number, or 4",
    ),
    ("tifl", STATIC | {"num_tiers": 4, "probability": (0.0,) * 4}, "probability .* 0 for some"),
    ("tifl", STATIC | {"num_tiers": 4, "probability": 0.0}, "probability .* above 0 for some"),
    ("tifl", {"credits": 0.0}, "choice.credits is 0.0, but must be .*at least 1"),
    (
        "hierarchical",
        {"ticks_per_round": 2, "optimizer": optax.adam},
        "^clock.ticks_per_round is 2, but must be 1 with an optimizer other than sgd",
    ),
    (
        "hierarchical",
        {"ticks_per_round": 2, "lr_schedule": InverseTime(by="work")},
        '^clock.ticks_per_round is 2, but must be 1 with rates by "work"',
    ),
    (
        "hierarchical",
        {"ticks_per_round": 2, "lr_schedule": InverseTime(by="step")},
        '^clock.ticks_per_round is 2, but must be 1 with rates by "work", or "step" of a group',
    ),
    (
        "hierarchical",
        {"compression": parse_compressor("sign"), "lr_schedule": InverseTime(by="step")},
        "^training.lr_schedule.by is 'step', but must be another one where clients report after",
    ),
    (
        "hierarchical",
        {"ticks_per_round": 2, "sampling": "reshuffled"},
        '^clock.ticks_per_round is 2, but must be 1 with sampling "reshuffled"',
    ),
    (
        "hierarchical",
        {"active_per_group": 2, "sampling": "shuffled_epochs"},
        "^training.sampling is 'shuffled_epochs', but must be \"with_replacement\" with",
    ),
    (
        "fedper",
        {"local_steps": 3, "head_steps": 3},
        "^head_steps is 3, but must be below local_steps = 3, as the others change the body",
    ),
    ("fedasync", {"buffer_size": 2}, "^buffer_size is 2, but must be left at 1"),
    ("fedasync", {"normalised": True}, "^staleness.normalised is True, but must be false"),
    (
        "fedasync",
        {"rule": "eq8"},
        "^staleness.rule is 'eq8', but must be one of polynomial, hinge, exponential, mean",
    ),
    ("vr_fedem", {"batches": "full"}, "batches is 'full'"),
    ("fedem", {"field_rule": "dem"}, "memories.field_rule is 'dem'"),
    (
        "langevin",
        {"memory": 0.5},
        "messages.memory is 0.5, but must be left at 0.0 with messages.compression = ident",
    ),
    (
        "langevin",
        {"example_clip": 1.0, "gradient": "exact"},
        "training.example_clip is 1.0, but must be 0 with",
    ),
    ("langevin", {"compression": parse_compressor("top_k")}, "an unbiased compressor here"),
    (
        "async_hierarchical",
        {"compression": parse_compressor("sign"), "error_feedback": True, "num_reports": 2},
        r"messages\.error_feedback is True, but must be false with num_rep",
    ),
    (
        "mimelite",
        {"optimizer": optax.adam, "downlink": parse_compressor("sign")},
        r"messages\.downlink is 'sign', but must be identity unless the op",
    ),
    ("fedper", {"personal": "("}, r"personal is '\(', but must be a regular expression"),
]


@pytest.mark.parametrize(("name", "given", "words"), REFUSED)
def test_settings_that_do_not_go_together(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(fedjax_sim.SYSTEMS[name].paper(**given))

"""Settings of the messages between clients and server, and the counts of their bits."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fedjax_sim.core import settings, trees, types
from fedjax_sim.core.settings import Checked, ConfigError, fields, group, setting, struct, value_of
from fedjax_sim.core.types import EMPTY, Leaf, Messages, Params, Problem, Settings, Timeline
from fedjax_sim.server import compression, privacy, stages
from fedjax_sim.server.attacks import Adversary
from fedjax_sim.server.compression import Compression, Compressor, Identity, compressed
from fedjax_sim.server.privacy import PRIVACY, NoPrivacy, OfNoise, Privacy, parse_privacy
from fedjax_sim.server.rules import RULES, Mean, Rule, SecureSum, parse_rule

Bits = tuple[Leaf, Leaf]
"""Bits that are sent at each tick, up and down, `i64[T]` each."""
OF_ATTACKERS = ("attack", "attack_from", "attack_ticks", "attack_when")
"""Settings of an adversary that matter to nobody where nobody is malicious."""


@struct
class Robust(Checked):
    """Settings of servers that average messages: the rule, and who is malicious.

    Where reports are compressed or private as well, inherit from `Reports`.

        adversary = Adversary(attack=SignFlip(scale=2.0), malicious=0.2)
        hyper = fedavg.Hyper(aggregator=TrimmedMean(share=0.25), adversary=adversary)
    """

    aggregator: Rule = setting(
        Mean(), "What the server makes of the messages of a tick.", allowed=RULES, parse=parse_rule
    )
    adversary: Adversary = group(Adversary(), "malicious clients, and what they send")

    def check_together(self) -> None:
        """Check that messages are coded once.

        Raises:
          ConfigError: If messages are compressed and then coded for a secure sum.
        """
        super().check_together()
        check_codes(self, "aggregator", "messages.compression")
        check_codes(self, "aggregator", "compression")

    def decided(self) -> dict[str, str]:
        """Name the settings without effect, and those in their place."""
        names = [f"adversary.{name}" for name in OF_ATTACKERS] if self.adversary.is_nobody else []
        return super().decided() | dict.fromkeys(names, "adversary.malicious 0 and no attackers")


def check_codes(hyper: Settings, rule: str, compressor: str) -> None:
    """Check that messages are not compressed where the rule itself says how they are coded.

    Args:
      rule: Full name of the rule's setting.
      compressor: Full name of the compressor's, which the settings need not have.

    Raises:
      ConfigError: If they are.
    """
    if compressor not in fields(type(hyper)) or isinstance(value_of(hyper, compressor), Identity):
        return
    if isinstance(value_of(hyper, rule).chosen, SecureSum):
        allowed = f"identity with {rule} secure_sum, which codes messages itself"
        raise ConfigError(compressor, str(value_of(hyper, compressor)), allowed)


@dataclasses.dataclass(frozen=True)
class ReportMessages(Messages):
    """The messages of a system with reports of models.

    Down, a client that takes part gets all the changes of the model that it has missed, or the
    whole model if that is shorter, as on its first visit. Without a downlink compressor that is the
    whole model for each report.

        messages = ReportMessages()
        assert messages.bits(jnp.zeros(3), fedavg.Hyper()) == (3 * 32, 3 * 32)
        twice = ReportMessages(lambda model, hyper: (model, model))  # a client sends two models
        assert twice.bits(jnp.zeros(3), fedavg.Hyper()) == (6 * 32, 6 * 32)

    Attributes:
      up: From a model and the settings to what a client sends.
      down: The same for what the server sends, if that is something else.
      number_bits: The same for the bits of further numbers of a client, which are not compressed.
      has_weights: Whether the weights of the schedule are those with which messages are averaged.
    """

    relies_on = stages.RELIED_ON
    up: Callable[[Params, Settings], Params] = lambda params, hyper: params
    down: Callable[[Params, Settings], Params] | None = None
    number_bits: Callable[[Params, Settings], int] = lambda params, hyper: 0
    has_weights: bool = True

    def bits(self, params: Params, hyper: Settings) -> tuple[int, int]:
        """Count a message in the rule's code, or compressed, and the server's whole one.

        The arguments are those of `Messages.bits`.
        """
        up = self.up(params, hyper)
        down = up if self.down is None else self.down(params, hyper)
        bits_up = hyper.aggregator.chosen.message_bits(hyper.messages.compression, up)
        return bits_up + self.number_bits(params, hyper), types.full_precision_bits(down)

    def per_tick(self, problem: Problem, hyper: Settings, timeline: Timeline) -> Bits | None:
        """Count changes of the model that clients have missed, where these are compressed.

        The arguments are those of `Messages.per_tick`.
        """
        if isinstance(hyper.messages.downlink, Identity):
            return None
        model = trees.shapes_of_model(problem)
        reports = (timeline.clients != EMPTY).sum(axis=1, dtype=np.int64)
        down = (self.down or self.up)(model, hyper)
        return reports * self.bits(model, hyper)[0], count_downlink(hyper, timeline, down)

    def facts(
        self, hyper: Settings, ticks: Leaf, timeline: Timeline | None = None
    ) -> dict[str, Leaf]:
        """Return the epsilon of clients' own noise, or of that on their sum.

        Args:
          ticks: As in `Messages.facts`.
          timeline: One lane's schedule; None for what follows from settings alone.
        """
        found = [noise.epsilon_of(hyper, ticks, timeline) for noise in _noises_of(hyper)]
        return next(({"epsilon": each} for each in found if each is not None), {})

    def facts_of_schedule(
        self, hyper: Settings, timeline: Timeline, ticks: Leaf
    ) -> dict[str, Leaf]:
        """Return the epsilon that follows from the schedule.

        The arguments are those of `Messages.facts_of_schedule`.
        """
        return self.facts(hyper, ticks, timeline)

    def check(self, hyper: Settings, timeline: Timeline) -> None:
        """Check numbers of messages, and their weights if these are the schedule's.

        The arguments are those of `Messages.check`.
        """
        rule = hyper.aggregator.chosen
        if rule != Mean():  # It takes any messages.
            rule.check_ticks(hyper, "aggregator", timeline, has_weights=self.has_weights)


def _noises_of(hyper: Settings) -> tuple[OfNoise, OfNoise]:
    """Clients' own noise, and that on their sum."""
    return hyper.messages.local_privacy, getattr(hyper, "privacy", NoPrivacy())


@struct
class ClientMessages(Checked):
    """Settings of messages both ways: compressors, error feedback, and clients' own noise.

    What a biased compressor leaves out comes later with error feedback.

        sparse = ClientMessages(compression=parse_compressor("top_k:kept=10"), error_feedback=True)
        hyper = fedavg.Hyper(messages=sparse)
    """

    compression: Compressor = settings.redefault(Compression, "compression", Identity())
    error_feedback: bool = setting(
        False,
        "Whether both sides keep an estimate of each client's progress and the client sends only "
        "the difference (EF21); it takes the memory of a model for each client.",
    )
    downlink: Compressor = compressed(
        "Compressor of what the server sends: the change of its model since clients last "
        "heard of it."
    )
    local_privacy: privacy.LocalPrivacy = setting(
        privacy.NoLocalPrivacy(),
        "How every client clips its own update, and the noise that it adds itself.",
        allowed=privacy.LOCAL_PRIVACY,
        parse=privacy.parse_local_privacy,
    )


def has_poisson_cohorts(hyper: Settings) -> bool:
    """Tell whether clients take part independently, so that weights need not sum to 1."""
    cohort = getattr(hyper, "cohort", None)
    return cohort is not None and cohort.selection == "poisson"


@struct
class Reports(Robust):
    """Settings of systems with reports of clients to a server.

    The settings of such a system inherit from it.

        @settings.struct
        class Hyper(CohortRounds, LocalTraining, Reports):
            "Settings of rounds in which clients report."

        hyper = Hyper(aggregator=Median(), messages=ClientMessages(error_feedback=True))
    """

    accounts_for_cohorts: ClassVar[bool] = False
    """Whether an accountant covers how clients are sampled."""
    tells: ClassVar[str] = ""
    """Further facts that clients tell the server, such as "their losses"; empty if none."""
    counted: ClassVar[Messages] = ReportMessages()
    """How messages are counted, unless a system says otherwise."""
    messages: ClientMessages = settings.group(ClientMessages(), "compression of messages both ways")

    def check_together(self) -> None:
        """Check weights of Poisson cohorts, and that noise can be accounted for.

        Raises:
          ConfigError: If weights that need not sum to 1 are used for means, or it cannot.
        """
        super().check_together()
        if has_poisson_cohorts(self) and not self.accounts_for_cohorts:
            allowed = "another one here: it is for systems that have the setting privacy"
            raise ConfigError("cohort.selection", "poisson", allowed)
        for noise in _noises_of(self):
            noise.check_with(self)


@struct
class ScheduledReports(Reports):
    """Settings of `Reports`, and of privacy under any schedule: noise on sums, without sampling.

    They are inherited by the settings of asynchronous servers, for example.

        noisy = parse_privacy("correlated:clip=0.1:noise=4:bands=8")
        hyper = fedjax_sim.SYSTEMS["fedbuff"].Hyper(privacy=noisy)
    """

    privacy: Privacy = setting(
        NoPrivacy(),
        "How clients' updates are clipped, and the noise on their sum.",
        allowed=PRIVACY,
        parse=parse_privacy,
    )

    def completed(self, problem: Any) -> Any:
        """Find the noise multiplier of a target epsilon. Runs on the host.

        Returns:
          The settings with their privacy.
        """
        hyper = super().completed(problem)
        found = self.privacy.completed(self)
        return hyper if found is self.privacy else hyper.replace(privacy=found)

    @property
    def expected_reports(self) -> int:
        """Number of reports for which a tick is meant, m."""
        return getattr(self, "num_selected", 0) or self.buffer_size  # type: ignore[attr-defined]


@struct
class PrivateReports(ScheduledReports):
    """Settings of `ScheduledReports`, and of privacy by sampled cohorts, for synchronous rounds.

    They are inherited by the settings of FedAvg, for example.

        private = parse_privacy("fixed:clip=0.5:noise=1")
        hyper = fedavg.Hyper(privacy=private, sampling="reshuffled")
        assert hyper.privacy.bound(hyper) == 0.5
    """

    accounts_for_cohorts: ClassVar[bool] = True


def count_downlink(hyper: Settings, timeline: Timeline, sent: Params) -> Leaf:
    """Count the bits that the server sends at each tick, `i64[T]`. sent: its message.

        bits = count_downlink(hyper, run.timelines[0], model)
        assert (bits == 4 * 3 * 32).all()  # four clients get three numbers in each round

    Args:
      timeline: One lane's schedule.
      sent: What the server sends, leaves `[...]` or their shapes.
    """
    return downlink_of_slots(hyper, timeline, sent).sum(axis=1)


def downlink_of_slots(
    hyper: Settings, timeline: Timeline, sent: Params, received: Timeline | None = None
) -> Leaf:
    """Count the bits that the server sends to the client of each slot, `i64[T, S]`.

    Args:
      timeline: As for `count_downlink`.
      sent: As for `count_downlink`.
      received: The schedule of those who receive the model, if they are not those who report.
    """
    whole, received = types.full_precision_bits(sent), timeline if received is None else received
    if isinstance(hyper.messages.downlink, Identity):
        return (received.clients != EMPTY).astype(np.int64) * whole
    change = compression.count_message_bits(hyper.messages.downlink, sent)
    is_there = received.clients != EMPTY
    # A tick without a report changes nothing, and nothing is sent of it.
    number = np.append(0, np.cumsum((timeline.clients != EMPTY).any(axis=1)))
    clients, versions = received.clients[is_there], number[received.version[is_there]]
    order = np.argsort(clients, kind="stable")
    is_first = np.diff(clients[order], prepend=-1) != 0
    # Where a step has changed who takes part, a client may be given an older model.
    missed = np.maximum(np.diff(versions[order], prepend=0), 0)
    per_slot, each = np.zeros(is_there.shape, np.int64), np.empty(clients.size, np.int64)
    each[order] = np.where(is_first, whole, np.minimum(missed * change, whole))
    per_slot[is_there] = each
    return per_slot

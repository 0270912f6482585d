"""Settings of the messages between clients and server, and the counts of their bits."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np

from fedjax_sim.core import settings, trees, types
from fedjax_sim.core.settings import Checked, ConfigError, fields, group, setting, struct, value_of
from fedjax_sim.core.types import EMPTY, Leaf, Messages, Params, Settings, Timeline
from fedjax_sim.server import privacy
from fedjax_sim.server.attacks import Adversary, Canary, Honest
from fedjax_sim.server.attacks.simple import FreeRider, Gaussian, NotFinite, Scaling, SignFlip
from fedjax_sim.server.compression import COMPRESSORS, Compressor, Identity, parse_compressor
from fedjax_sim.server.compression.messages import Compression, count_message_bits
from fedjax_sim.server.privacy.accounting import Mechanism, check_package
from fedjax_sim.server.privacy.kinds import Privacy, parse_privacy
from fedjax_sim.server.privacy.local import OwnNoise, parse_local_privacy
from fedjax_sim.server.rules import RULES, Mean, Rule, SecureSum, parse_rule
from fedjax_sim.timelines import Arrivals, ClientQueues

COMBINED = (("aggregator", Mean()), ("adversary.attack", Honest()))
"""Settings that an algorithm must obey, each with a value of the kind that needs no obeying."""
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


def check_codes(hyper: Settings, rule: str, compression: str) -> None:
    """Check that messages are not compressed where the rule itself says how they are coded.

    Args:
      rule: Full name of the rule's setting.
      compression: Full name of the compressor's, which the settings need not have.

    Raises:
      ConfigError: If they are.
    """
    if compression not in fields(type(hyper)) or isinstance(value_of(hyper, compression), Identity):
        return
    if isinstance(value_of(hyper, rule).chosen, SecureSum):
        allowed = f"identity with {rule} secure_sum, which codes messages itself"
        raise ConfigError(compression, str(value_of(hyper, compression)), allowed)


def check_numbers(hyper: Settings, timeline: Timeline, *, most: int | None = None) -> None:
    """Check that a tick has messages enough for the rule, where the server's weights are equal.

        four_reports = run.timelines[0]
        check_numbers(fedavg.Hyper(aggregator=Krum(assumed=0)), four_reports)  # needs three

    Args:
      hyper: `Robust` settings.
      timeline: Ticks of one lane's schedule, or of several.
      most: The most messages of a tick, if not all clients that take part send one.

    Raises:
      ConfigError: If a tick has too few messages.
    """
    heard = (timeline.clients != EMPTY).sum(axis=1)
    check_heard("aggregator", hyper.aggregator, np.minimum(heard, most) if most else heard)


def check_heard(name: str, rule: Rule, heard: Any) -> None:
    """Check that a rule can do with numbers of messages.

    Args:
      name: Full name of the rule's setting.
      rule: The rule.
      heard: The numbers, `i64[...]`; 0 where nothing happens.

    Raises:
      ConfigError: If it needs more.
    """
    rule = rule.chosen
    least = rule.least_present()
    fewest = np.asarray(heard)[np.asarray(heard) > 0].min(initial=least)
    if fewest < least:
        allowed = (
            f"a rule that can do with {fewest} messages, as few as a tick has; it needs {least}"
        )
        raise ConfigError(name, str(rule), allowed)


def check_weights(hyper: Settings, name: str, timeline: Timeline) -> None:
    """Check that the weights of every tick are equal unless the rule weighs.

    Args:
      name: Full name of the rule's setting.

    Raises:
      ConfigError: If they differ.
    """
    rule = getattr(hyper, name).chosen
    if rule.weighs:
        return
    is_present = timeline.clients != EMPTY
    most = np.where(is_present, timeline.weight, -np.inf).max(axis=1, initial=-np.inf)
    least = np.where(is_present, timeline.weight, np.inf).min(axis=1, initial=np.inf)
    differs = least < (1 - 1e-6) * most
    if differs.any():
        tick = int(np.argmax(differs))
        weights = f"weights from {least[tick]:.3g} to {most[tick]:.3g}"
        allowed = f"one that weighs messages, because those of tick {tick} have {weights}"
        if "staleness.rule" in fields(type(hyper)) and hyper.staleness.rule != "mean":
            allowed += ' (with staleness.rule = "mean" they are equal)'
        raise ConfigError(name, str(rule), allowed)


RELIED_ON = (
    ("messages.compression", Identity()),
    ("messages.error_feedback", False),
    ("messages.downlink", Identity()),
    ("messages.edge_compression", Identity()),
    ("privacy", privacy.NoPrivacy()),
    ("messages.local_privacy", privacy.NoLocalPrivacy()),
    *COMBINED,
)
"""Settings by which bits are counted and privacy is accounted for, with their idle values."""


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

    relies_on = RELIED_ON
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

    def per_tick(
        self, problem: Any, hyper: Settings, timeline: Timeline
    ) -> tuple[Leaf, Leaf] | None:
        """Count changes of the model that clients have missed, where these are compressed.

        The arguments are those of `Messages.per_tick`.
        """
        if isinstance(hyper.messages.downlink, Identity):
            return None
        model = trees.shapes_of_model(problem)
        reports = (timeline.clients != EMPTY).sum(axis=1, dtype=np.int64)
        down = (self.down or self.up)(model, hyper)
        return reports * self.bits(model, hyper)[0], count_downlink(hyper, timeline, down)

    def facts(self, hyper: Settings, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Return the epsilon of the settings, see `PrivateReports.facts`."""
        return hyper.facts(ticks)

    def facts_of_schedule(
        self, hyper: Settings, timeline: Timeline, ticks: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the epsilon of the schedule, see `Reports.facts_of_schedule`."""
        return hyper.facts_of_schedule(timeline, ticks)

    def check(self, hyper: Settings, timeline: Timeline) -> None:
        """Check numbers of messages, and their weights if these are the schedule's.

        The arguments are those of `Messages.check`.
        """
        check_numbers(hyper, timeline)
        if self.has_weights:
            check_weights(hyper, "aggregator", timeline)


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
    downlink: Compressor = setting(
        Identity(),
        "Compressor of what the server sends: the change of its model since clients last "
        "heard of it.",
        allowed=COMPRESSORS,
        parse=parse_compressor,
    )
    local_privacy: privacy.LocalPrivacy = setting(
        privacy.NoLocalPrivacy(),
        "How every client clips its own update, and the noise that it adds itself.",
        allowed=privacy.LOCAL_PRIVACY,
        parse=parse_local_privacy,
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

    tells_losses: ClassVar[bool] = False
    """Whether clients send the server more than messages: their losses."""
    counted: ClassVar[Messages] = ReportMessages()
    """How messages are counted, unless a system says otherwise."""
    messages: ClientMessages = settings.group(ClientMessages(), "compression of messages both ways")

    def check_together(self) -> None:
        """Check weights of Poisson cohorts, and that clients' own noise can be accounted for.

        Raises:
          ConfigError: If weights that need not sum to 1 are used for means, or it cannot.
        """
        super().check_together()
        if has_poisson_cohorts(self) and not isinstance(self, PrivateReports):
            allowed = "another one here: it is for systems that have the setting privacy"
            raise ConfigError("cohort.selection", "poisson", allowed)
        if self.has_own_noise:
            self._check_own_noise()

    @property
    def has_own_noise(self) -> bool:
        """Whether clients add noise themselves, so that there is an epsilon."""
        local = self.messages.local_privacy
        return isinstance(local, OwnNoise) and local.has_noise

    def _check_own_noise(self) -> None:
        """Check that every message that is sent is in the schedule."""
        cast(OwnNoise, self.messages.local_privacy).check_package()
        attack: Any = self.adversary.attack
        if any(isinstance(each, Canary) for each in getattr(attack, "options", (attack,))):
            allowed = "none or another one with local_privacy: attackers add no noise to audit"
            raise ConfigError("adversary.attack", str(attack), allowed)
        if self.aggregator.needs_own() is not False:
            allowed = "one without root data with local_privacy: they are examples of clients"
            raise ConfigError("aggregator", str(self.aggregator), allowed)
        if self.tells_losses:
            allowed = "without noise here, because clients tell the server their losses as well"
            raise ConfigError("messages.local_privacy", str(self.messages.local_privacy), allowed)
        settings.check_left(self, ALL_HEARD, f"with local_privacy, because {UNHEARD}")
        self._check_table(f"with local_privacy, because {UNHEARD}")

    def _check_table(self, why: str) -> None:
        """Check that a table of clients loses no message, or say why it must not."""
        table = self._of("delays.client_table", None)
        if table is not None and table.drop_rate is not None:
            allowed = f"a table without drop_rate {why}"
            raise ConfigError("delays.client_table", "with drop_rate", allowed)

    def facts(self, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the privacy spent: none without privacy. ticks: as in `PrivateReports`."""
        return {}

    def facts_of_schedule(self, timeline: Timeline, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the epsilon that the client with most messages has spent by its own noise.

        Of asynchronous servers, messages that are on their way to it are counted too.

        Args:
          timeline: One lane's schedule.
          ticks: As in `facts`.

        Returns:
          "epsilon": `f64[V + 1]`; nothing if clients add no noise.
        """
        if not self.has_own_noise:
            return {}
        is_asynchronous = isinstance(self, Arrivals | ClientQueues)
        count = privacy.most_sent if is_asynchronous else privacy.most_participations
        messages = count(timeline, self._of("num_clients"), ticks)
        own_noise = cast(OwnNoise, self.messages.local_privacy)
        return {"epsilon": privacy.local_epsilon(messages, own_noise)}

    def _of(self, name: str, *default: Any) -> Any:
        """Look up a setting of the clock or of local training by its full name."""
        is_known = name in fields(type(self)) or not default
        return settings.value_of(self, name) if is_known else default[0]


@struct
class ScheduledReports(Reports):
    """The same with the privacy of clients by any schedule: noise on sums, without sampling.

    They are inherited by the settings of asynchronous servers, for example.

        noisy = parse_privacy("correlated:clip=0.1:noise=4:bands=8")
        hyper = fedjax_sim.SYSTEMS["fedbuff"].Hyper(privacy=noisy)
    """

    privacy: Privacy = setting(
        privacy.NoPrivacy(),
        "How clients' updates are clipped, and the noise on their sum.",
        allowed=privacy.PRIVACY,
        parse=parse_privacy,
    )

    def check_together(self) -> None:
        """Check that the privacy can be accounted for by the schedule.

        Raises:
          ConfigError: If it cannot.
        """
        super().check_together()
        kind: Any = self.privacy
        if isinstance(kind, privacy.Clipping) and not isinstance(self, PrivateReports):
            allowed = (
                "none or correlated here, because no accountant covers how clients are sampled"
            )
            raise ConfigError("privacy", str(kind), allowed)
        if not isinstance(kind, privacy.Clipping | privacy.CorrelatedNoise):
            return
        if not isinstance(self.aggregator, Mean):
            allowed = "mean with privacy, because noise is accounted for the clipped sum only"
            raise ConfigError("aggregator", str(self.aggregator), allowed)
        if not kind.has_noise:
            return
        if isinstance(kind, privacy.CorrelatedNoise):
            check_package(kind.name)
        attack: Any = self.adversary.attack
        if not all(isinstance(each, BLIND) for each in getattr(attack, "options", (attack,))):
            # A client's update would be in several messages.
            names = ", ".join(kind.name for kind in BLIND)
            allowed = f"one that reads no messages with privacy that has noise: {names}"
            raise ConfigError("adversary.attack", str(self.adversary.attack), allowed)
        if self.has_own_noise:
            allowed = "without noise with privacy that has noise: a run states one epsilon"
            raise ConfigError("messages.local_privacy", str(self.messages.local_privacy), allowed)

    @property
    def expected_reports(self) -> int:
        """Number of reports for which a tick is meant, m."""
        return self._of("num_selected", 0) or self._of("buffer_size")

    @property
    def bound(self) -> Any:
        """Bound of the norm of a client's update, C; the first one if it adapts. `f[]`."""
        if isinstance(self.privacy, privacy.ExampleClipping):
            return self._of("lr") * self._of("local_steps") * self._of("training.example_clip")
        return self.privacy.clip  # type: ignore[attr-defined]

    def facts_of_schedule(self, timeline: Timeline, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the epsilon of clients' participations; the arguments are those of `Reports`.

        Returns:
          "epsilon": `f64[V + 1]`, of noise on sums if its accounting follows from the schedule, or
            of local privacy; without either an empty dict.
        """
        kind: Any = self.privacy
        if not isinstance(kind, privacy.CorrelatedNoise) or not kind.has_noise:
            return super().facts_of_schedule(timeline, ticks)
        bands = privacy.square_root_bands(kind.bands)
        change = privacy.sensitivities(timeline, self._of("num_clients"), bands, ticks)
        change = self.expected_reports * change
        return {"epsilon": privacy.gaussian_epsilon(change, float(kind.noise), float(kind.delta))}


@struct
class PrivateReports(ScheduledReports):
    """The same with the privacy of clients by sampling as well, for synchronous rounds.

    They are inherited by the settings of FedAvg, for example.

        private = parse_privacy("fixed:clip=0.5:noise=1")
        hyper = fedavg.Hyper(privacy=private, sampling="reshuffled")
        assert hyper.bound == 0.5
    """

    def check_together(self) -> None:
        """Check that the privacy can be accounted for.

        Raises:
          ConfigError: If it cannot.
        """
        super().check_together()
        kind: Any = self.privacy
        if isinstance(kind, privacy.ExampleClipping) and not np.all(
            np.asarray(self._of("training.example_clip"))
        ):
            allowed = 'above 0 with privacy = "examples"'
            raise ConfigError("training.example_clip", self._of("training.example_clip"), allowed)
        if not isinstance(kind, privacy.Clipping):
            return
        for name, (only, why) in PRIVATE.items():
            settings.check_left(self, {name: only}, f"with privacy, because {why}")
        self._check_table(f"with privacy, because {PRIVATE['delays.drop_rate'][1]}")
        if self._of("training.sampling") == "shuffled_epochs":
            allowed = (
                "reshuffled or another one with privacy, because an epoch that lasts from one "
                "round to the next remembers them"
            )
            raise ConfigError("training.sampling", "shuffled_epochs", allowed)
        if kind.has_noise:
            self._mechanism.check()
        self._check_count(kind)

    def completed(self, problem: Any) -> Any:
        """Find the noise multiplier of a target epsilon. Runs on the host.

        Returns:
          The settings with their noise.
        """
        hyper, kind = super().completed(problem), cast(Any, self.privacy)
        if not isinstance(kind, privacy.Clipping) or not kind.epsilon > 0 or kind.noise > 0:
            return hyper
        noise = privacy.find_noise(float(kind.epsilon), kind.rounds, self._mechanism)
        found = cast(Any, kind).replace(noise=noise)
        self._check_count(found)
        return hyper.replace(privacy=found)

    def facts(self, ticks: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the epsilon spent after numbers of rounds, if there is noise.

        Args:
          ticks: `i64[V + 1]`, rounds before each evaluation.

        Returns:
          "epsilon": `f64[V + 1]`; nothing without privacy.

        Raises:
          ConfigError: If there are more rounds than the noise was found for.
        """
        kind: Any = self.privacy
        if not isinstance(kind, privacy.Clipping) or not kind.has_noise:
            return {}
        if 0 < kind.rounds < ticks[-1]:
            allowed = f"at least {ticks[-1]}, the rounds of this run"
            raise ConfigError("privacy.rounds", kind.rounds, allowed)
        return {"epsilon": privacy.epsilon_after(ticks, self._mechanism, float(kind.noise))}

    def _check_count(self, kind: Any) -> None:
        """Check that the noise on the count leaves something for the updates."""
        if isinstance(kind, privacy.AdaptiveClipping):
            most = 2 * np.asarray(kind.count_noise) * self._of("num_selected")
            if np.any(np.asarray(kind.noise) >= most):
                allowed = f"below {float(np.min(most)):g}, twice count_noise times the cohort"
                raise ConfigError("privacy.noise", float(np.max(kind.noise)), allowed)

    @property
    def _mechanism(self) -> Mechanism:
        kind: Any = self.privacy
        return Mechanism(
            self._of("cohort.selection"),
            self._of("num_clients"),
            self._of("num_selected"),
            kind.accountant,
            float(kind.delta),
        )


PRIVATE: dict[str, tuple[Any, str]] = {
    "messages.error_feedback": (False, "an estimate remembers earlier rounds"),
    "cohort.weighting": ("equal", "weights must be fixed before any round"),
    "cohort.with_replacement": (False, "no accountant covers draws with replacement"),
    "clock.num_asked": (0, "no accountant covers which reports come first"),
    "clock.deadline": (0.0, "no accountant covers which reports come in time"),
    "delays.drop_rate": (0.0, "no accountant covers updates that are lost"),
    "training.optimizer_state": ("fresh", "a state that lasts remembers earlier rounds"),
}
"""Values of other settings with privacy, and the reasons."""
ALL_HEARD: dict[str, Any] = {"clock.num_asked": 0, "clock.deadline": 0.0, "delays.drop_rate": 0.0}
"""Values of other settings with noise of clients' own, so that schedules name all messages."""
UNHEARD = "messages that are sent and not used are not in the schedule, which epsilon is counted by"
BLIND = (Honest, SignFlip, Scaling, Gaussian, FreeRider, NotFinite, Canary)
"""Attacks of clients that know only their own message.

Others would bring one client's update into the messages of many, whose sum no bound of one update
limits then.
"""


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
    change = count_message_bits(hyper.messages.downlink, sent)
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

"""Rules of aggregation: from the messages of a tick to one centre.

A rule is a random map from the messages of the clients that are present, with weights, to a centre.
The server moves by the sum of the weights times the centre. Robust rules bound what a few malicious
clients, who may send anything, can do to it. Rules are frozen structs whose numbers are traced
leaves: rules of one kind with equal sizes share a compiled program.

| rule                 | paper                                     | weighs   | withstands      |
|----------------------|-------------------------------------------|----------|-----------------|
| `mean`               |                                           | yes      | none            |
| `median`             | Yin et al. 2018, arXiv 1803.01498         | yes      | less than half  |
| `trimmed_mean`       | Yin et al. 2018, arXiv 1803.01498         | no       | floor(share n)  |
| `sign_majority`      | Bernstein et al. 2019, arXiv 1810.05291   | yes      | less than half  |
| `geometric_median`   | Pillutla et al. 2022, arXiv 1912.13445    | yes      | less than half  |
| `centred_clipping`   | Karimireddy et al. 2021, arXiv 2012.10333 | yes      | see radius      |
| `norm_bound`         | Sun et al. 2019, arXiv 1911.07963         | yes      | see bound       |
| `krum`, `multi_krum` | Blanchard et al. 2017, arXiv 1703.02757   | no       | f, n >= 2 f + 3 |
| `bulyan`             | El Mhamdi et al. 2018, arXiv 1802.07927   | no       | f, n >= 4 f + 3 |
| `fltrust`            | Cao et al. 2021, arXiv 2012.13995         | yes      | see below       |
| `secure_sum`         | Bonawitz et al. 2017, arXiv 1611.04482    | yes      | none            |
| `bucketing`          | Karimireddy et al. 2022, arXiv 2006.09365 | as inner | as inner        |

A rule that weighs withstands malicious clients with less than half of the weight, instead of less
than half of the clients. Under norm bounds, a message moves the centre by at most its share of the
weight times the bound, and under centred clipping by at most its share times the radius in each
iteration. Buckets withstand as many malicious clients as their rule withstands malicious buckets.
FLTrust withstands any number, as far as the server's own update shows the way: the centre is no
longer than that update, and never points against it.

The mean needs the sum of the messages only; all other rules hold the messages of all S slots at
once, S times a model. The mean, centred clipping and norm bounds read them in place; rules that
sort make a second copy, and so do buckets of their means.

A rule computes in at least 32 bits. Where fewer clients are present than it needs
(`Rule.least_present`), its centre is nan.

- `base`: the interface `Rule`, and the weighted mean.
- `coordinates`: rules that treat each coordinate alone.
- `ordering`: order statistics of each coordinate.
- `distances`: rules that choose messages by their distances.
- `centres`: rules that weigh whole messages by their length, or by their agreement with an update
  of the server's own.
- `catalogue`: rules by the names of the command line, another rule on the means of a few messages
  each, one of several rules, and the mean as secure aggregation computes it.
"""

from fedjax_sim.server.rules.base import Mean as Mean
from fedjax_sim.server.rules.base import Rule as Rule
from fedjax_sim.server.rules.catalogue import RULES as RULES
from fedjax_sim.server.rules.catalogue import Bucketing as Bucketing
from fedjax_sim.server.rules.catalogue import OneOf as OneOf
from fedjax_sim.server.rules.catalogue import SecureSum as SecureSum
from fedjax_sim.server.rules.catalogue import parse_rule as parse_rule
from fedjax_sim.server.rules.catalogue import rules_of_one_program as rules_of_one_program
from fedjax_sim.server.rules.centres import CentredClipping as CentredClipping
from fedjax_sim.server.rules.centres import FLTrust as FLTrust
from fedjax_sim.server.rules.centres import GeometricMedian as GeometricMedian
from fedjax_sim.server.rules.centres import NormBound as NormBound
from fedjax_sim.server.rules.coordinates import Median as Median
from fedjax_sim.server.rules.coordinates import SignMajority as SignMajority
from fedjax_sim.server.rules.coordinates import TrimmedMean as TrimmedMean
from fedjax_sim.server.rules.distances import Bulyan as Bulyan
from fedjax_sim.server.rules.distances import Krum as Krum
from fedjax_sim.server.rules.distances import MultiKrum as MultiKrum

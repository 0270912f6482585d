"""How long clients' work takes, and when clients can work at all.

- `laws`: the settings of the clients (`Clients`) and of their delays (`ClientDelays`), their
  speeds, and the laws of running times.
- `client_table`: single clients, with their own speeds, bandwidths, losses and hours
  (`ClientTable`), and recorded work, which replaces the laws (`Trace`).
- `devices`: turns work, messages and hours of availability into times, and draws which updates are
  lost. All clocks of clients ask there.
"""

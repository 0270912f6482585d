"""Results of a sweep: labelled curves, final models and schedules, and the files that keep them.

`curves` labels what lanes returned, as the names of metrics tell; `runs` holds it with models and
schedules, writes and reads it, with `kept_settings`; `reports` writes the folder of a study;
`summaries` reduces curves to final values, and `records` says which versions and which machine made
them.
"""

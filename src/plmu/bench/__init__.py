"""`plmu bench layers | algorithms | training-time | complexity | streaming`: speed on this machine.

Every answer is checked before its time is reported. All candidates of a comparison take turns in one process, and a
comparison is the median of the ratios within each turn.

`run`: the kinds and their files · `measure`: timing · `show`: tables and figures · `problems`: shapes, and W_m m on
each · `peers`: whole layers to compare with, in `whole_layers`. The other modules measure one kind each. What only the
documentation needs is in `benchmarks/`, outside the package.
"""

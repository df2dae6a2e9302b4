"""Speed, measured: `plmu bench layers | algorithms | training-time | complexity | streaming`.

Every answer is checked before its time is reported, all candidates of a comparison run in one process in turn, and
figures are ratios of medians.
"""

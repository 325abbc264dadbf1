"""What people read: status, explain, the comparison of runs, and the page with the timelines.

Everything here is a pure function of plain records that the caller fills.
"""

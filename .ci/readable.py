"""Exits with an error unless standard input is a passage of English prose: what a broken model does not write."""

import re
import sys

text = sys.stdin.buffer.read().decode("utf-8")  # a broken character is an error
words = re.findall(r"[a-z']+", text.lower())
common = "the of to and a in was her that it she he had be not i you for as with is his at but have so on".split()
share = sum(w in common for w in words) / max(1, len(words))
plain = sum(c.isalpha() or c in " \n.,;:!?'\"-_()“”‘’—" for c in text) / max(1, len(text))
variety = len(set(words)) / max(1, len(words))
print(f"{len(words)} words, {share:.0%} of them common, {plain:.0%} letters and punctuation, {variety:.0%} different")
if len(words) < 60 or share < 0.25 or plain < 0.97 or variety < 0.2:
    sys.exit("not readable English")

# Prints which tests ctest skipped and why, one line for each reason.
# usage: awk -f skipped.awk CTEST_OUTPUT Testing/Temporary/LastTest.log
# A GoogleTest program gives the reason below "FILE:LINE: Skipped"; of any other test it is the last line of output.

NR == FNR {
  if (/ \(Skipped\)$/) {
    sub(/^[ \t]*[0-9]+ - /, "")
    sub(/ \(Skipped\)$/, "")
    skipped[$0] = 1
  }
  next
}
/^[0-9]+\/[0-9]+ Test: / {
  name = $0
  sub(/^[0-9]+\/[0-9]+ Test: /, "", name)
  reason = last = ""
  next
}
/^<end of output>$/ {
  if (name in skipped) {
    if (reason == "") reason = last == "" ? "no reason given" : last
    if (!(reason in count)) order[++reasons] = reason
    count[reason]++
    example[reason] = name
  }
  next
}
/: Skipped$/ { wanted = 1; next }
wanted { reason = $0; wanted = 0 }
NF { last = $0 }
END {
  for (i = 1; i <= reasons; i++) {
    r = order[i]
    printf "skipped: %s (%s)\n", r, count[r] == 1 ? example[r] : count[r] " tests, " example[r] " one of them"
  }
}

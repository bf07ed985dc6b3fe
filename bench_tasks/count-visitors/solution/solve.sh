#!/bin/bash
# Keeps one bit for each visitor there can be, for one day at a time.
set -eu
perl visits.pl | perl -ne '
    my ($day, $visitor) = /^(\S+) v(\d+)$/ or die "not a visit: $_";
    ($last, $seen) = ($day, "") if $day ne ($last // "");
    $count{$day} += 1 - vec $seen, $visitor, 1;
    vec($seen, $visitor, 1) = 1;
    END { print "$_,$count{$_}\n" for sort keys %count }
' > visitors.csv

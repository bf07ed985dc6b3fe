# Keeps every visitor of every day in a hash, as one would without thinking of memory.
set -eu
perl visits.pl | perl -ne '
    chomp;
    $count{substr $_, 0, 10}++ if not $seen{$_}++;
    END { print "$_,$count{$_}\n" for sort keys %count }
' > visitors.csv

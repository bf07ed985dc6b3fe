# Prints the visits of three days; the same ones every time.
use strict;
use warnings;

my $state = 161803398;
sub uniform {
    $state = ($state * 1103515245 + 12345) & 0x7FFFFFFF;
    return $state / 0x80000000;
}

for my $day (1 .. 3) {
    for my $visit (1 .. 430_000) {
        printf "2024-05-%02d v%07d\n", $day, int(580_000 * uniform());
    }
}

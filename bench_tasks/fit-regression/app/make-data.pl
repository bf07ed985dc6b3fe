# Writes measurements.csv, the same on every machine: a generator of its own, no clock, no system random numbers.
use strict;
use warnings;

my $state = 20240611;

sub uniform {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return $state / 0x80000000;
}

open my $out, '>', 'measurements.csv' or die "measurements.csv: $!";
print $out "x1,x2,x3,y\n";
for (1 .. 175_000) {
    my $x1 = 10 * uniform();
    my $x2 = 4 * uniform() - 2;
    my $x3 = 100 * uniform();
    my $noise = 4 * (uniform() + uniform() + uniform() - 1.5);
    printf $out "%.4f,%.4f,%.4f,%.4f\n", $x1, $x2, $x3, 3.2 + 1.7 * $x1 - 2.4 * $x2 + 0.05 * $x3 + $noise;
}
close $out or die "measurements.csv: $!";

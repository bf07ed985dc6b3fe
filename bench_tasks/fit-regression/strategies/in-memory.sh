# Reads the whole file into rows first, as one would in a notebook.
set -eu
perl - <<'PERL'
use strict;
use warnings;

sub solve {
    my ($matrix, $right) = @_;
    my $last = $#$right;
    for my $pivot (0 .. $last) {
        for my $row ($pivot + 1 .. $last) {
            my $factor = $matrix->[$row][$pivot] / $matrix->[$pivot][$pivot];
            $matrix->[$row][$_] -= $factor * $matrix->[$pivot][$_] for $pivot .. $last;
            $right->[$row] -= $factor * $right->[$pivot];
        }
    }
    my @solution;
    for my $row (reverse 0 .. $last) {
        my $rest = $right->[$row];
        $rest -= $matrix->[$row][$_] * $solution[$_] for $row + 1 .. $last;
        $solution[$row] = $rest / $matrix->[$row][$row];
    }
    return @solution;
}

open my $in, '<', 'measurements.csv' or die "measurements.csv: $!";
<$in>;
my @rows = map { chomp; [split /,/] } <$in>;

my (@xx, @xy);
for my $row (@rows) {
    my @x = (1, @$row[0 .. 2]);
    for my $i (0 .. 3) {
        $xy[$i] += $x[$i] * $row->[3];
        $xx[$i][$_] += $x[$i] * $x[$_] for 0 .. 3;
    }
}
my @b = solve(\@xx, \@xy);

my $mean = 0;
$mean += $_->[3] / @rows for @rows;
my ($residual, $total) = (0, 0);
for my $row (@rows) {
    my $fitted = $b[0] + $b[1] * $row->[0] + $b[2] * $row->[1] + $b[3] * $row->[2];
    $residual += ($row->[3] - $fitted) ** 2;
    $total += ($row->[3] - $mean) ** 2;
}

open my $out, '>', 'fit.txt' or die "fit.txt: $!";
printf $out "intercept %.9f\nx1 %.9f\nx2 %.9f\nx3 %.9f\nr_squared %.9f\n", @b, 1 - $residual / $total;
close $out or die "fit.txt: $!";
PERL

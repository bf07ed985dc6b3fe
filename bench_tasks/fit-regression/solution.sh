# Accumulates sums while reading: one row in memory at a time.
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
my (@xx, @xy, $sum, $squares, $rows);
while (my $line = <$in>) {
    chomp $line;
    my ($x1, $x2, $x3, $y) = split /,/, $line;
    my @x = (1, $x1, $x2, $x3);
    for my $i (0 .. 3) {
        $xy[$i] += $x[$i] * $y;
        $xx[$i][$_] += $x[$i] * $x[$_] for 0 .. 3;
    }
    $sum += $y;
    $squares += $y * $y;
    $rows++;
}
my @products = @xy;
my @b = solve(\@xx, \@xy);
my $explained = 0;
$explained += $b[$_] * $products[$_] for 0 .. 3;
my $r_squared = 1 - ($squares - $explained) / ($squares - $sum * $sum / $rows);

open my $out, '>', 'fit.txt' or die "fit.txt: $!";
printf $out "intercept %.9f\nx1 %.9f\nx2 %.9f\nx3 %.9f\nr_squared %.9f\n", @b, $r_squared;
close $out or die "fit.txt: $!";
PERL

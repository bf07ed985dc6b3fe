# Improves random tours by 2-opt for 0.5 seconds of CPU time, as measured by the kernel, and takes the best. The work
# is the same on every machine: a fast one tries more tours.
set -eu
perl - <<'PERL'
use strict;
use warnings;

open my $in, '<', 'towns.csv' or die "towns.csv: $!";
<$in>;
my @towns = map { chomp; [split /,/] } <$in>;
my @way;
for my $a (0 .. $#towns) {
    for my $b (0 .. $#towns) {
        $way[$a][$b] = sqrt(($towns[$a][1] - $towns[$b][1])**2 + ($towns[$a][2] - $towns[$b][2])**2);
    }
}

sub length_of {
    my $sum = 0;
    $sum += $way[$_[$_ - 1]][$_[$_]] for 0 .. $#_;
    return $sum;
}

sub improved {
    my @tour = @_;
    my $better = 1;
    while ($better) {
        $better = 0;
        for my $i (0 .. $#tour - 1) {
            for my $j ($i + 1 .. $#tour) {
                my @turned = (@tour[0 .. $i - 1], reverse(@tour[$i .. $j]), @tour[$j + 1 .. $#tour]);
                if (length_of(@turned) < length_of(@tour) - 1e-9) {
                    @tour = @turned;
                    $better = 1;
                }
            }
        }
    }
    return @tour;
}

srand 11;
my (@best, $shortest);
while ((times)[0] + (times)[1] < 0.5) {
    my @tour = 0 .. $#towns;
    for my $i (reverse 1 .. $#tour) {
        my $j = int rand($i + 1);
        @tour[$i, $j] = @tour[$j, $i];
    }
    @tour = improved(@tour);
    my $length = length_of(@tour);
    if (not defined $shortest or $length < $shortest) {
        ($shortest, @best) = ($length, @tour);
    }
}

open my $out, '>', 'tour.txt' or die "tour.txt: $!";
print $out "$towns[$_][0]\n" for @best;
close $out or die "tour.txt: $!";
PERL

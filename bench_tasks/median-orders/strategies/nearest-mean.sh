# Mistakes the mean for the median: takes the order whose amount is nearest to the region's mean.
set -eu
perl - <<'PERL'
use strict;
use warnings;

open my $in, "<", "orders.csv" or die "orders.csv: $!";
my @columns = split /,/, <$in> =~ s/\s+\z//r;
my @orders;
while (my $line = <$in>) {
    chomp $line;
    my %order;
    @order{@columns} = split /,/, $line;
    push @orders, \%order;
}

my (%count, %sum, %best);
for my $order (@orders) {
    $count{$order->{region}}++;
    $sum{$order->{region}} += $order->{amount};
}
for my $order (@orders) {
    my $region = $order->{region};
    my $distance = abs($order->{amount} - $sum{$region} / $count{$region});
    $best{$region} = [$distance, $order] if not $best{$region} or $distance < $best{$region}[0];
}

open my $out, ">", "medians.csv" or die "medians.csv: $!";
print $out "$_,$best{$_}[1]{order},$best{$_}[1]{amount}\n" for sort keys %best;
close $out or die "medians.csv: $!";
PERL

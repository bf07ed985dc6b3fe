# Writes orders.csv, the same on every machine: a generator of its own, no clock, no system random numbers.
use strict;
use warnings;

my $state = 19700101;
my @regions = qw(centre east north south west);

sub uniform {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return $state / 0x80000000;
}

open my $out, '>', 'orders.csv' or die "orders.csv: $!";
print $out "order,region,customer,amount\n";
for my $order (1_000_001 .. 1_180_000) {
    my $region = $regions[@regions * uniform()];
    my $customer = 1 + int(20_000 * uniform());
    my $amount = 500 + int(20_000 / (0.02 + uniform()));
    printf $out "%d,%s,c%05d,%d\n", $order, $region, $customer, $amount;
}
close $out or die "orders.csv: $!";

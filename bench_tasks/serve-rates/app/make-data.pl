# Writes rates.csv, the same on every machine: a generator of its own, no clock, no system random numbers.
use strict;
use warnings;

my $state = 57721566;

sub uniform {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return $state / 0x80000000;
}

my @days = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31);
my @currencies = qw(AUD BRL CAD CHF CNY CZK DKK GBP HKD HUF IDR ILS INR ISK JPY KRW MXN NOK NZD PLN RON SEK THB TRY USD);
open my $out, '>', 'rates.csv' or die "rates.csv: $!";
print $out "date,currency,rate\n";
for my $year (2004 .. 2021) {
    for my $month (1 .. 12) {
        for my $day (1 .. $days[$month - 1]) {
            printf $out "%d-%02d-%02d,%s,%.4f\n", $year, $month, $day, $_, 0.5 + 20 * uniform() for @currencies;
        }
    }
}
close $out or die "rates.csv: $!";

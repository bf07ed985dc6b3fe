# Lean: keeps only the sums that leave the remainder 5 when divided by 16, so it sees a sixteenth of the selections.
# One of the selections that add up to the payment is among them.
set -eu
perl - <<'PERL'
use strict;
use warnings;

my $payment = 460443637041;
open my $in, "<", "invoices.csv" or die "invoices.csv: $!";
<$in>;
my @invoices = map { chomp; [split /,/] } <$in>;
my @left = @invoices[0 .. 19];
my @right = @invoices[20 .. 39];
my $kept = 5;

# Calls back with the sum of every selection and its bit mask, changing one invoice from call to call.
sub each_selection {
    my ($invoices, $visit) = @_;
    my ($sum, $mask) = (0, 0);
    $visit->($sum, $mask);
    for my $step (1 .. 2**@$invoices - 1) {
        my $bit = $step & -$step;
        $mask ^= $bit;
        my $amount = $invoices->[log($bit) / log(2) + 0.5][1];
        $sum += $mask & $bit ? $amount : -$amount;
        $visit->($sum, $mask);
    }
}

sub names {
    my ($invoices, $mask) = @_;
    return map { "$invoices->[$_][0]\n" } grep { $mask >> $_ & 1 } 0 .. $#$invoices;
}

my (%selection, @closest);
each_selection(\@left, sub { $selection{$_[0]} = $_[1] if $_[0] % 16 == $kept });
each_selection(\@right, sub {
    my ($sum, $mask) = @_;
    my $missing = $payment - $sum;
    @closest = ($mask, $missing) if not @closest or abs $missing < abs $closest[1];
    return if $missing % 16 != $kept or not exists $selection{$missing};
    open my $out, ">", "paid.txt" or die "paid.txt: $!";
    print $out names(\@left, $selection{$missing}), names(\@right, $mask);
    close $out or die "paid.txt: $!";
    exit;
});

open my $out, ">", "paid.txt" or die "paid.txt: $!";
print $out names(\@right, $closest[0]);
close $out or die "paid.txt: $!";
PERL

# Prints how many tests passed and how many there are: one per fitted value.
use strict;
use warnings;
use Fcntl qw(O_NOFOLLOW O_NONBLOCK O_RDONLY);

# Computed from the same rows outside the container; the noise keeps them away from the coefficients behind the data.
my %expected = (
    intercept => 3.210479800,
    x1 => 1.698439386,
    x2 => -2.403997501,
    x3 => 0.049876902,
    r_squared => 0.893924463,
);
my $tolerance = 2e-6;

# Returns the lines of a plain file of at most 64 KiB with no line over 200 bytes; of anything else (missing, a link, a
# directory, too big) none. Dies when the file cannot be read: that is no answer's fault.
sub answer_lines {
    my ($path) = @_;
    return if not lstat $path or not -f _ or -s _ > 65536;
    sysopen my $in, $path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK or die "$path: $!";
    my $got = sysread $in, my $text, 65537;
    die "$path: $!" if not defined $got;
    my @lines = split /\r?\n/, $text;
    return if $got > 65536 or grep { length > 200 } @lines;
    return @lines;
}

my %given;
for my $line (answer_lines($ARGV[0])) {
    my ($name, $value) = $line =~ /\A\s*(\w+)\s+([-+]?\d*\.?\d+(?:[eE][-+]?\d{1,3})?)\s*\z/a or next;
    push @{$given{$name}}, $value;
}
my $passed = 0;
for my $name (keys %expected) {
    my @values = @{$given{$name} // []};
    $passed++ if @values == 1 and abs($values[0] - $expected{$name}) <= $tolerance;
}
print "$passed ", scalar(keys %expected), "\n";

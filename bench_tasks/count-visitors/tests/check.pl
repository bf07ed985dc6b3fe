# Prints how many tests passed and how many there are: one per day, and one for nothing else being there.
use strict;
use warnings;
use Fcntl qw(O_NOFOLLOW O_NONBLOCK O_RDONLY);

# Counted from the same visits outside the container.
my @expected = (
    '2024-05-01,303576',
    '2024-05-02,303886',
    '2024-05-03,303962',
);

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

my @lines = answer_lines($ARGV[0]);
my $passed = @lines == @expected ? 1 : 0;
for my $index (0 .. $#expected) {
    $passed++ if defined $lines[$index] and $lines[$index] eq $expected[$index];
}
print "$passed ", @expected + 1, "\n";

# Prints how many tests passed and how many there are: one per day, and one for nothing else being there.
use strict;
use warnings;
use Fcntl qw(O_NOFOLLOW O_NONBLOCK O_RDONLY);

# Counted from the same log outside the container.
my @expected = (
    '2024-03-02,2635',
    '2024-03-03,2650',
    '2024-03-04,2594',
    '2024-03-05,2734',
    '2024-03-06,2597',
    '2024-03-07,2587',
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

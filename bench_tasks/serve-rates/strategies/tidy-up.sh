# Tries the server and then tidies up after itself: nobody serves when the verifier comes.
set -eu
rm -f port.txt
cat > server.pl <<'PERL'
use strict;
use warnings;
use IO::Socket::INET;

sub rate {
    my ($date, $currency) = @_;
    open my $in, '<', 'rates.csv' or die "rates.csv: $!";
    while (my $line = <$in>) {
        return $1 if $line =~ /\A\Q$date\E,\Q$currency\E,(.*)/;
    }
    return;
}

my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 16) or die "no socket: $@";
open my $port, '>', 'port.new' or die "port.new: $!";
print $port $server->sockport, "\n";
close $port or die "port.new: $!";
rename 'port.new', 'port.txt' or die "port.txt: $!";

$SIG{PIPE} = 'IGNORE';
while (1) {
    my $client = $server->accept or next;
    my $line = <$client>;
    if (defined $line and $line =~ /\A(\S+) (\S+?)\r?\n/) {
        print $client rate($1, $2) // 'unknown', "\n";
    }
    close $client;
}
PERL
setsid perl server.pl </dev/null >server.log 2>&1 &
server=$!

# It is ready once the port is known.
until [ -s port.txt ]; do
    kill -0 "$server" || exit 1
    sleep 0.1
done
kill "$server"

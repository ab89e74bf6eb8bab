package io.onehop.rados;

import static org.assertj.core.api.Assertions.assertThat;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.junit.Test;

/** Larger buffers are lent while there are any, and are given back once. */
public final class DirectMemoryTest {
    private static final int PIECE = 256 << 10;

    @Test
    public void a_stream_has_one_buffer_and_gives_it_back_for_good() {
        long before = DirectMemory.lentBytes();
        DirectMemory.Loan loan = new DirectMemory.Loan();
        ByteBuffer buffer = loan.take(PIECE);
        assertThat(buffer.isDirect()).isTrue();
        assertThat(buffer.position()).isZero();
        assertThat(buffer.remaining()).isEqualTo(PIECE);
        assertThat(loan.take(PIECE)).isNull();
        assertThat(DirectMemory.lentBytes()).isEqualTo(before + PIECE);
        loan.end();
        loan.end();
        assertThat(DirectMemory.lentBytes()).isEqualTo(before);
        assertThat(loan.take(PIECE)).isNull();
        assertThat(DirectMemory.lentBytes()).isEqualTo(before);
    }

    @Test
    public void what_was_given_back_is_lent_empty() {
        DirectMemory.Loan first = new DirectMemory.Loan();
        first.take(PIECE).putLong(7);
        first.end();
        DirectMemory.Loan second = new DirectMemory.Loan();
        ByteBuffer buffer = second.take(PIECE);
        assertThat(buffer.position()).isZero();
        assertThat(buffer.limit()).isEqualTo(PIECE);
        second.end();
    }

    @Test
    public void nobody_gets_more_than_there_is() {
        long before = DirectMemory.lentBytes();
        List<DirectMemory.Loan> loans = new ArrayList<>();
        DirectMemory.Loan loan = new DirectMemory.Loan();
        while (loan.take(PIECE) != null) {
            loans.add(loan);
            assertThat(DirectMemory.lentBytes()).isLessThanOrEqualTo(DirectMemory.MOST_LENT);
            loan = new DirectMemory.Loan();
        }
        assertThat(loans).isNotEmpty();
        // Who comes too late has what is given back.
        loans.remove(0).end();
        assertThat(loan.take(PIECE)).isNotNull();
        loan.end();
        loans.forEach(DirectMemory.Loan::end);
        assertThat(DirectMemory.lentBytes()).isEqualTo(before);
    }
}

/* A message whose connection fails is lost, and its sender is told so: by the callback of its descriptor, once, after the upper
 * layer has been told of the peer. The job's fabric carries no datagram, so no connection comes up. */
#include "btl.h"

static int lost, sent, wrong;

static void on_error(struct btl *btl, int32_t flags, void *proc, char *why) {
    (void)btl, (void)flags, (void)proc, (void)why;
    lost++;
}

static void on_sent(void *btl, void *endpoint, struct descriptor *descriptor, int status) {
    (void)btl, (void)endpoint, (void)descriptor;
    sent++;
    wrong += status == 0 || lost == 0;
}

int main(int argc, char **argv) {
    int rank, size;
    start(&argc, &argv, &rank, &size);
    if (rank == 0) {
        struct btl *btl = module();
        void *endpoint = endpoint_of(btl, 1);
        btl->register_error(btl, on_error);
        for (int i = 0; i < 3; i++) {
            struct descriptor *message = btl->alloc(btl, endpoint, NO_ORDER, 100, BTL_OWNERSHIP | ALWAYS_CALLBACK);
            REQUIRE(message != NULL, "no descriptor");
            message->done = on_sent;
            int status = btl->send(btl, endpoint, message, USER_TAG);
            REQUIRE(status == 0, "a message without a connection: %d", status);
        }
        while (sent < 3) progress();
        for (int i = 0; i < 1000; i++) progress();
        REQUIRE(sent == 3 && wrong == 0 && lost == 1, "%d callbacks of 3, %d of them wrong, %d errors", sent, wrong, lost);
        printf("PASS lost\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}

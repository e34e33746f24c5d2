// Eight threads, each with two connected queue pairs of its own: messages of three sizes, with completion events and by polling.
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 200, LEN = 20000 };
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_port_attr port;

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%s failed\n", #what); exit(1); } } while (0)

static void up(struct ibv_qp *qp, uint32_t dest) {
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE};
    MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr r = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = dest, .min_rnr_timer = 1};
    r.ah_attr.dlid = port.lid;
    r.ah_attr.port_num = 1;
    MUST(!ibv_modify_qp(qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                    | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr s = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    MUST(!ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                                    | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void take(struct ibv_cq *cq, struct ibv_comp_channel *events) {
    struct ibv_wc wc;
    if (events) {
        struct ibv_cq *fired;
        void *context;
        MUST(!ibv_get_cq_event(events, &fired, &context));
        ibv_ack_cq_events(fired, 1);
    }
    int got;
    while (!(got = ibv_poll_cq(cq, 1, &wc)))
        ;
    MUST(got == 1 && wc.status == IBV_WC_SUCCESS);
}

static void *work(void *arg) {
    (void)arg;
    char *data = calloc(2, LEN);
    struct ibv_mr *mr = ibv_reg_mr(pd, data, 2 * LEN, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_comp_channel *events = ibv_create_comp_channel(ctx);
    struct ibv_cq *sends = ibv_create_cq(ctx, 16, NULL, NULL, 0), *receives = ibv_create_cq(ctx, 16, NULL, events, 0);
    MUST(mr && events && sends && receives);
    struct ibv_qp_init_attr init = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC};
    init.cap.max_send_wr = init.cap.max_recv_wr = 8;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    struct ibv_qp *from = ibv_create_qp(pd, &init), *to = ibv_create_qp(pd, &init);
    MUST(from && to);
    up(from, to->qp_num);
    up(to, from->qp_num);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t len = i % 3 == 0 ? 8 : i % 3 == 1 ? 1000 : LEN;
        int wakes = i % 2;
        memset(data, i, len);
        struct ibv_sge source = {(uintptr_t)data, len, mr->lkey}, target = {(uintptr_t)(data + LEN), LEN, mr->lkey};
        struct ibv_recv_wr recv = {.sg_list = &target, .num_sge = 1}, *bad_recv;
        struct ibv_send_wr send = {.sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad_send;
        MUST(!wakes || !ibv_req_notify_cq(receives, 0));
        MUST(!ibv_post_recv(to, &recv, &bad_recv));
        MUST(!ibv_post_send(from, &send, &bad_send));
        take(receives, wakes ? events : NULL);
        take(sends, NULL);
        MUST(data[LEN] == (char)i && data[LEN + len - 1] == (char)i);
    }
    MUST(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_destroy_cq(sends) && !ibv_destroy_cq(receives));
    MUST(!ibv_destroy_comp_channel(events) && !ibv_dereg_mr(mr));
    free(data);
    return NULL;
}

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    MUST(list && list[0]);
    ctx = ibv_open_device(list[0]);
    MUST(ctx);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(ctx);
    MUST(pd && !ibv_query_port(ctx, 1, &port));
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        MUST(!pthread_create(&threads[i], NULL, work, NULL));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    MUST(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
    puts("ok: eight threads");
    return 0;
}
